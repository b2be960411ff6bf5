"""Jobs of very many tasks: they end, and an end costs the same in a small job and in a large one.

Counts only, never times. A job is one task, then all the others but one at once, then the last.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from benchmarks.probes import Probe
from benchmarks.sqlite_work import StatementCounter
from benchmarks.stub import without_children
from benchmarks.system import TENANT, open_system, run_worker, wait_until_ended
from benchmarks.wide_jobs import dispatched, wide
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock
from longshore.core.ids import task_id_of
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.backend import Backend
from longshore.testing.memory.backend import memory_backend
from longshore.wiring.services import Services

NO_TIME = timedelta(0)
SMALL, LARGE = 100, 400
# The first and the last task are reported once, so the other tasks' share grows with the job.
ROUNDING = 1.02
# One bit a task in the job's row and in the one that awaits them all, four to a hexadecimal digit;
# both are read and written. Nothing else may grow with the job.
BYTES_OF_BITS = (LARGE - SMALL) // 4 * 2 * 2


@asynccontextmanager
async def open_services(kind: str, folder: Path) -> AsyncIterator[Backend]:
    if kind == "sqlite":
        async with sqlite_backend(folder / "data", SystemClock()) as backend:
            yield backend
    else:
        yield memory_backend(SystemClock(), atomic=kind == "atomic memory")


def measure(kind: str, folder: Path, size: int, *, fails: bool) -> dict[str, float]:
    """What the dispatcher did for each task that ended; each end was dispatched alone."""
    folder.mkdir()
    worked = StatementCounter() if kind == "sqlite" else Probe()

    async def run_scenario() -> dict[str, float]:
        async with open_services(kind, folder) as backend:
            counts = await dispatched(backend, folder, worked, size=size, fails=fails)
        return counts.per_operation(size)

    with worked.watching():
        through_ports = asyncio.run(run_scenario())
    return {
        **through_ports,
        **(worked.per_operation(size) if isinstance(worked, StatementCounter) else {}),
    }


@pytest.mark.parametrize("fails", [False, True], ids=["that completes", "that fails"])
@pytest.mark.parametrize("kind", ["memory", "atomic memory", "sqlite"])
def test_dispatching_the_end_of_a_task_costs_no_more_in_a_larger_job(
    kind: str, fails: bool, tmp_path: Path
) -> None:
    small = measure(kind, tmp_path / "small", SMALL, fails=fails)
    large = measure(kind, tmp_path / "large", LARGE, fails=fails)

    in_bytes = {"bytes_read", "bytes_written"}
    more = {name: large[name] / small[name] for name in small if name not in in_bytes}
    assert {name: times for name, times in more.items() if times > ROUNDING} == {}
    assert {"rows_read", "rows_written"} <= more.keys()
    assert sum(large[name] - small[name] for name in in_bytes) <= BYTES_OF_BITS


def test_a_job_of_ten_thousand_tasks_runs_to_its_end(tmp_path: Path) -> None:
    async def run_scenario() -> None:
        async with open_system(tmp_path, concurrency=256) as services, run_worker(services):
            accepted = await services.producer.submit(TENANT, "wide", {"tasks": wide(10_000)})
            await wait_until_ended(services)
            job = await services.backend.ledger.get_job(accepted.job.id)
            states = await services.backend.ledger.task_states(accepted.job.id)
            last = await services.backend.ledger.get_task(task_id_of(accepted.job.id, "last"))

        assert job is not None
        assert (job.state, len(job.completed)) == (JobState.COMPLETED, 10_000)
        assert (len(states), set(states.values())) == (10_000, {TaskState.COMPLETED})
        assert last is not None
        assert last.attempt == 1

    with without_children():
        asyncio.run(run_scenario())


def test_what_was_put_behind_a_task_later_is_sent_on_also_in_a_job_whose_graph_was_read_before(
    tmp_path: Path,
) -> None:
    async def run_scenario() -> None:
        async with open_system(tmp_path) as services:
            accepted = await services.producer.submit(TENANT, "wide", {"tasks": wide(SMALL)})
            job_id = accepted.job.id
            await end(services, job_id, "first")
            # The graph is read: to see what is behind this one, and again after each addition.
            await end(services, job_id, "t1", fails=True)
            for number in (2, 3):
                task = {"name": "command", "input": {"argv": ["true"]}}
                late = [{**task, "taskId": f"late-{number}", "dependsOn": [f"t{number}"]}]
                await services.producer.add_tasks(TENANT, job_id, f"more-{number}", {"tasks": late})
                before = await services.backend.ledger.task_states(job_id)
                await end(services, job_id, f"t{number}")
                after = await services.backend.ledger.task_states(job_id)

                states = (before[f"late-{number}"], after[f"late-{number}"])
                assert states == (TaskState.WAITING, TaskState.PENDING)

    asyncio.run(run_scenario())


async def end(services: Services, job_id: str, key: str, *, fails: bool = False) -> None:
    """Claim and end a task, and have it dispatched."""
    task_id = task_id_of(job_id, key)
    claim = c.Claim(
        worker_id="w",
        process_id=1,
        lease_duration=timedelta(minutes=10),
        epoch=services.backend.ledger.epoch,
    )
    claimed = await services.transitions.apply_to_task(task_id, claim)
    outcome: c.Command = c.Complete(fence=claimed.fence, result=None, duration=NO_TIME)
    if fails:
        no = Failure(category=ErrorCategory.UNKNOWN, message="no", retry=False)
        outcome = c.AttemptFailed(fence=claimed.fence, failure=no, duration=NO_TIME, jitter=0.0)
    await services.transitions.apply_to_task(task_id, outcome)
    while await services.dispatcher.step(NO_TIME):
        pass
