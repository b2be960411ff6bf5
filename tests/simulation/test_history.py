"""The history notices effects of a task's end that are missing or late."""

import asyncio
from datetime import timedelta
from typing import Any

from longshore.core.ids import job_id_of, task_id_of
from longshore.core.queues import message_body
from longshore.core.tasks.commands import RequestCancel
from longshore.core.tasks.rows import TaskRow
from longshore.ports.task_queue import OutgoingMessage
from tests.simulation.harness import calm_simulation, make_process, simulated
from verification.simulation.processes import Process
from verification.simulation.simulation import TENANT, Simulation

SECOND = timedelta(seconds=1)
JOB = job_id_of(TENANT, "request")
TASKS: list[dict[str, Any]] = [
    {"taskId": "parent", "name": "python"},
    {"taskId": "child", "name": "python", "dependsOn": ["parent"]},
]


async def submitted() -> tuple[Simulation, Process]:
    simulation = calm_simulation()
    process = make_process(simulation)
    await process.services.producer.submit(TENANT, "request", {"tasks": TASKS})
    await asyncio.sleep(1)
    return simulation, process


async def cancelled(process: Process) -> TaskRow:
    """Cancel the parent without dispatching its end."""
    command = RequestCancel(by="me")
    return await process.services.transitions.apply_to_task(task_id_of(JOB, "parent"), command)


@simulated
async def test_an_acknowledged_event_without_its_effects_is_a_violation() -> None:
    simulation, process = await submitted()
    await cancelled(process)
    bus = process.services.backend.bus
    delivery = await bus.receive("consumer", types=["Task Cancelled"], limit=9, wait=SECOND)
    assert delivery is not None
    await bus.acknowledge("consumer", delivery.receipt)
    (violation,) = simulation.violations
    assert "its job has not recorded it" in violation.text


@simulated
async def test_the_real_dispatcher_handles_what_it_acknowledges() -> None:
    simulation, process = await submitted()
    await cancelled(process)
    assert await process.services.dispatcher.step(SECOND)
    assert simulation.violations == []


@simulated
async def test_an_answered_end_without_its_effects_is_a_violation() -> None:
    simulation, process = await submitted()
    row = await cancelled(process)
    await simulation.history.on_answered(row, simulation.time())
    assert len(simulation.violations) == 1
    await process.services.dispatcher.settle([row.id])
    await simulation.history.on_answered(row, simulation.time())
    assert len(simulation.violations) == 1


@simulated
async def test_a_job_that_records_an_end_late_is_noticed_only_without_faults() -> None:
    for calm_from, violation_count in ((10_000.0, 0), (0.0, 1)):
        simulation, process = await submitted()
        simulation.calm_from = calm_from
        row = await cancelled(process)
        await asyncio.sleep(25)
        await process.services.dispatcher.settle([row.id])
        assert len(simulation.violations) == violation_count


@simulated
async def test_a_message_for_a_task_that_waits_is_a_violation() -> None:
    simulation, process = await submitted()
    for key in ("parent", "child", "nothing"):
        body = message_body(task_id_of(JOB, key))
        await process.services.backend.queue.send([OutgoingMessage(queue="default", body=body)])
    assert [violation.subject.split("_")[1] for violation in simulation.violations] == [
        "child",
        "nothing",
    ]
