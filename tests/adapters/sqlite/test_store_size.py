"""How many bytes a job takes on disk."""

from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.core.tasks import commands as c
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from tests.unit.services.harness import LEASE, ServiceHarness, make_task, scenario, task_id

JOBS = 2_000
MOST_BYTES = 600
MOST_BYTES_WITH_EMPTY_PAGES = 700


async def _run_jobs(folder: Path, count: int) -> None:
    """Single-task jobs: created, claimed, completed, settled."""
    async with sqlite_backend(folder, FakeClock(START)) as backend:
        harness = ServiceHarness(backend)
        for number in range(count):
            request_id = f"request-{number}"
            await harness.submit(make_task("a"), request_id=request_id)
            task = task_id("a", request_id)
            claim = c.Claim(
                worker_id="worker-1",
                process_id=7,
                lease_duration=LEASE.duration,
                epoch=backend.ledger.epoch,
            )
            claimed = await harness.transitions.apply_to_task(task, claim)
            done = c.Complete(fence=claimed.fence, result=None, duration=timedelta(0))
            await harness.transitions.apply_to_task(task, done)
        await harness.dispatch()


@pytest.mark.timeout(600)
@scenario
async def test_a_job_of_one_task_with_its_five_events_takes_few_bytes(tmp_path: Path) -> None:
    await _run_jobs(tmp_path / "empty", 0)
    await _run_jobs(tmp_path / "full", JOBS)
    empty, full = _sizes(tmp_path / "empty"), _sizes(tmp_path / "full")

    whole = sum(full.values()) / JOBS
    # An empty table or index is a page of its own, however many jobs there are.
    per_job = (sum(full.values()) - sum(empty.values())) / JOBS
    figures = {name: size // JOBS for name, size in full.items() if size > empty[name]}
    print(f"{per_job:.0f} bytes a job, {whole:.0f} with empty pages: {figures}")  # noqa: T201
    assert per_job < MOST_BYTES
    assert whole < MOST_BYTES_WITH_EMPTY_PAGES


def _sizes(folder: Path) -> dict[str, int]:
    """The bytes of the pages of each table and index."""
    connection = apsw.Connection(str(folder / store_file.FILE_NAME))
    connection.execute("VACUUM")
    sql = "SELECT (SELECT total(sequence) FROM tasks), total(sequence), count(*) FROM jobs"
    ((of_tasks, of_jobs, jobs),) = connection.execute(sql).fetchall()
    assert (of_tasks, of_jobs) == (3 * jobs, 2 * jobs)
    sizes = connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name").fetchall()
    connection.close()
    return dict(sizes)


@scenario
async def test_a_job_of_many_tasks_stores_its_graph_once_and_no_summaries(tmp_path: Path) -> None:
    count = 10_000
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(*(make_task(f"task-number-{n}") for n in range(count)))
        database = backend.ledger._database
        ((history, graph),) = database.point("SELECT length(history), graph FROM jobs")
        blobs = database.point("SELECT key, size FROM blobs")

        assert history < 30
        assert isinstance(graph, bytes)
        assert [key for key, _ in blobs] == [graph.partition(b":")[2].decode()]
