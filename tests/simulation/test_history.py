"""What must have followed from the end of a task, and when."""

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
    world = calm_simulation()
    process = make_process(world)
    await process.services.producer.submit(TENANT, "request", {"tasks": TASKS})
    await asyncio.sleep(1)
    return world, process


async def cancelled(process: Process) -> TaskRow:
    """The parent, of whose end nobody was told."""
    wish = RequestCancel(by="me")
    return await process.services.transitions.apply_to_task(task_id_of(JOB, "parent"), wish)


@simulated
async def test_what_is_acknowledged_has_been_dealt_with() -> None:
    world, process = await submitted()
    await cancelled(process)
    bus = process.services.backend.bus
    delivery = await bus.receive("somebody", types=["Task Cancelled"], limit=9, wait=SECOND)
    assert delivery is not None
    await bus.acknowledge("somebody", delivery.receipt)
    (breach,) = world.violations
    assert "its job has not heard of it" in breach.text


@simulated
async def test_the_real_dispatcher_has_dealt_with_what_it_acknowledges() -> None:
    world, process = await submitted()
    await cancelled(process)
    assert await process.services.dispatcher.step(SECOND)
    assert world.violations == []


@simulated
async def test_whoever_is_told_of_an_end_finds_what_follows_done() -> None:
    world, process = await submitted()
    row = await cancelled(process)
    await world.history.on_answered(row, world.time())
    assert len(world.violations) == 1
    await process.services.dispatcher.settle([row.id])
    await world.history.on_answered(row, world.time())
    assert len(world.violations) == 1


@simulated
async def test_a_job_that_hears_late_of_an_end_is_noticed_only_where_nothing_goes_wrong() -> None:
    for calm_from, found in ((10_000.0, 0), (0.0, 1)):
        world, process = await submitted()
        world.calm_from = calm_from
        row = await cancelled(process)
        await asyncio.sleep(25)
        await process.services.dispatcher.settle([row.id])
        assert len(world.violations) == found


@simulated
async def test_a_message_for_a_task_that_still_waits_is_too_early() -> None:
    world, process = await submitted()
    for key in ("parent", "child", "nothing"):
        body = message_body(task_id_of(JOB, key))
        await process.services.backend.queue.send([OutgoingMessage(queue="default", body=body)])
    assert [breach.subject.split("_")[1] for breach in world.violations] == ["child", "nothing"]
