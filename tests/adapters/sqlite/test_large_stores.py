"""A store that is four times as large costs no more work for any query.

Counts of the steps that SQLite's machine takes, which are the same however busy the computer is.
"""

import asyncio
from pathlib import Path

from benchmarks.listing import Request, middle_of, port_requests
from benchmarks.many_jobs import filled
from benchmarks.sqlite_work import StatementCounter
from benchmarks.system import TENANT
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.backend import Backend

# The end of the log is looked at in another way, so the middle of the small store must be far off.
SMALL, LARGE = 2_000, 8_000
ROUNDING = 1.1


async def _steps(folder: Path, count: int) -> dict[str, int]:
    """By question, the steps that it takes in a store of so many jobs."""
    await filled(folder, count)
    worked = StatementCounter()
    rows = {}
    with worked.watching():
        async with sqlite_backend(folder, SystemClock()) as backend:
            middle = await middle_of(backend, count)
            asks = {**port_requests(backend, middle), **_others(backend, middle.job_id)}
            for name, ask in asks.items():
                before = worked.vm_steps
                with worked:
                    await ask()
                rows[name] = worked.vm_steps - before
    return rows


def _others(backend: Backend, job_id: str) -> dict[str, Request]:
    ledger, events = backend.ledger, backend.events
    return {
        "tasks": lambda: ledger.list_tasks(TENANT),
        "tasks_state": lambda: ledger.list_tasks(TENANT, state=TaskState.FAILED),
        "tasks_of_job_state": lambda: ledger.list_tasks(
            TENANT, job_id=job_id, state=TaskState.FAILED
        ),
        "states_of_job": lambda: ledger.task_states(job_id),
        "find_first": lambda: ledger.find_ids(TENANT, "job-"),
        "few_by_state": lambda: ledger.list_jobs(TENANT, state=JobState.RUNNING, limit=5),
        "events": lambda: events.query(TENANT),
        "events_app": lambda: events.query(TENANT, app="longshore"),
        "events_type": lambda: events.query(TENANT, event_type="Task Failed"),
        "events_entity": lambda: events.query(TENANT, entity=f"JOB#{job_id}"),
        "events_job_type": lambda: events.query(TENANT, job_id=job_id, event_type="Task Failed"),
    }


def test_a_question_takes_no_more_steps_in_a_larger_store(tmp_path: Path) -> None:
    folders = tmp_path / "small", tmp_path / "large"
    for folder in folders:
        folder.mkdir(mode=0o700)

    small = asyncio.run(_steps(folders[0], SMALL))
    large = asyncio.run(_steps(folders[1], LARGE))

    assert {name: (small[name], large[name]) for name in small if _grows(small, large, name)} == {}
    assert len(small) > 20


def _grows(small: dict[str, int], large: dict[str, int], name: str) -> bool:
    return large[name] > small[name] * ROUNDING
