"""The task source in SQLite: promises, cancelled claims, and jobs that cannot be settled."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from benchmarks.sqlite_work import StatementCounter
from longshore.adapters.sqlite import task_source
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.transaction import StoreTransaction, feed_entries
from longshore.core.claims import Room
from longshore.core.events.types import Usage
from longshore.core.jobs import settle
from longshore.core.tasks import commands as c
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.backend import Backend
from longshore.ports.task_source import Applied, LeaseCommand, TaskSource, WorkerInstance
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    commit,
    commit_job,
    fresh_change_id,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import START, running, without_time_passing
from longshore.testing.contracts.task_source import LEASE, Worker, complete, join, renew
from tests.adapters.sqlite.test_queues import noted_promises
from tests.execution.conftest import scenario

WAIT = timedelta(seconds=60)


def source_of(backend: Backend) -> TaskSource:
    assert backend.source is not None
    return backend.source


async def remote_worker(source: TaskSource) -> Worker:
    worker = WorkerInstance(
        worker_id="far", queues=("default",), process_id=7, lease_duration=LEASE, local=False
    )
    return Worker(source, await source.join(worker))


@contextmanager
def blocked_writer(source: Any) -> Iterator[None]:
    """The writer does nothing meanwhile."""
    gate = threading.Event()
    source._database.write(lambda _: gate.wait(10), durable=False)
    try:
        yield
    finally:
        gate.set()


@scenario
async def test_a_claim_that_arrives_after_a_later_one_is_tried_once(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        source: Any = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        await worker.claim(1, turn_id="turn-2")
        write, tries = source._database.write, []

        def counted(*arguments: Any, **options: Any) -> Any:
            tries.append(arguments)
            assert len(tries) < 10
            return write(*arguments, **options)

        source._database.write = counted

        assert await worker.claim(1, turn_id="turn-1") == ()
        assert len(tries) == 1


@scenario
async def test_a_claim_that_is_cancelled_midway_gives_back_what_it_took(tmp_path: Path) -> None:
    clock = FakeClock(START)
    async with sqlite_backend(tmp_path, clock) as backend:
        source = source_of(backend)
        pending = await commit(backend, new_task())
        worker = await join(source)
        with blocked_writer(source):
            async with running(worker.claim(wait=WAIT)) as claiming:
                assert not claiming.done()
                clock.advance(LEASE)

        (task,) = await without_time_passing(worker.claim(wait=WAIT))

        assert claiming.cancelled()
        assert (task.attempt, task.row.attempts_used) == (2, 0)
        assert task.due_at == (pending.due_at and pending.due_at.replace(microsecond=123_000))


@scenario
async def test_outcomes_are_promised_and_leases_of_this_machine_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = noted_promises(monkeypatch)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        source = source_of(backend)
        for number in range(2):
            await commit(backend, new_task(f"t{number}", number=number))
        worker = await join(source)
        promises.clear()
        (task,) = await worker.claim(1)
        usage = c.Renew(fence=task.fence, lease_duration=LEASE, usage=Usage(turns=1))

        await worker.send(renew(task.row))
        await worker.send(LeaseCommand(task.task_id, usage, fresh_change_id()))
        await worker.send(complete(task.row))
        await worker.send(room=Room(slots=1))

    assert promises == [False, False, True, True, False]


@scenario
async def test_leases_of_other_machines_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = noted_promises(monkeypatch)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        source = source_of(backend)
        await commit(backend, new_task())
        worker = await remote_worker(source)
        promises.clear()

        (task,) = await worker.claim()
        await worker.send(renew(task.row))

    assert promises == [True, True]
    assert task.row.lease is not None
    assert not task.row.lease.local


@scenario
async def test_an_outcome_stays_if_its_job_cannot_be_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        source = source_of(backend)
        created = new_job()
        await commit_job(backend, replace(created, row=replace(created.row, total=2)))
        for number, key in enumerate("ab"):
            await commit(backend, new_task(key, number=number))
        worker = await join(source)
        task, other = await worker.claim()

        def fail(*_: Any, **__: Any) -> None:
            message = "no"
            raise ValueError(message)

        with monkeypatch.context() as patched:
            patched.setattr(task_source, "settle", fail)
            (answer,) = await worker.send(complete(task.row))
        (later,) = await worker.send(complete(other.row))

        assert isinstance(answer, Applied)
        assert isinstance(later, Applied)
        row = await backend.ledger.get_task(task.task_id)
        job = await backend.ledger.get_job(created.row.id)
        assert row is not None
        assert job is not None
        assert (row.state, job.state) == (TaskState.COMPLETED, JobState.RUNNING)
        unrecorded = await backend.ledger.unrecorded_ends(ended_by=START + LEASE, limit=9)
        assert unrecorded == [task.task_id]


@scenario
async def test_a_turn_leaves_more_dependents_than_its_limit_to_the_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "MAX_DEPENDENTS", 0)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        source = source_of(backend)
        created = new_job()
        await commit_job(backend, replace(created, row=replace(created.row, total=2)))
        keys = task_source.unpack_document('["b"]')
        await commit(backend, new_task("a", number=0, dependents=keys))
        waiting = await commit(backend, new_task("b", number=1, awaits=[0]))
        worker = await join(source)
        (task,) = await worker.claim()

        await worker.send(complete(task.row))

        row = await backend.ledger.get_task(waiting.id)
        assert row == waiting
        unrecorded = await backend.ledger.unrecorded_ends(ended_by=START + LEASE, limit=9)
        assert unrecorded == [task.task_id]


@scenario
async def test_a_row_that_cannot_be_read_keeps_no_other_task_from_being_claimed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock(START)
    async with sqlite_backend(tmp_path, clock) as backend:
        source = source_of(backend)
        damaged = await commit(backend, new_task("a", number=0))
        other = await commit(backend, new_task("b", number=1))
        sql = "UPDATE tasks SET rest = '{' WHERE key = 'a'"
        await source._database.write(lambda connection: connection.execute(sql) and None)  # type: ignore[attr-defined]
        worker = await join(source)

        claimed = await worker.claim()
        async with running(worker.claim(wait=WAIT)) as waiting:
            assert not waiting.done()
            clock.advance(WAIT)
            assert await without_time_passing(waiting) == ()

    assert [task.task_id for task in claimed] == [other.id]
    reported = [record for record in caplog.records if record.msg == "task.claim_failed"]
    assert {record.__dict__["task_id"] for record in reported} == {damaged.id}
    assert len(reported) == 2


@scenario
async def test_what_a_failed_settlement_had_written_is_not_in_the_feed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        source = source_of(backend)
        created = new_job()
        await commit_job(backend, replace(created, row=replace(created.row, total=2)))
        keys = task_source.unpack_document('["b"]')
        await commit(backend, new_task("a", number=0, dependents=keys))
        waiting = await commit(backend, new_task("b", number=1, awaits=[0]))
        worker = await join(source)
        (task,) = await worker.claim()

        def fail(*_: Any, **__: Any) -> None:
            message = "no"
            raise ValueError(message)

        monkeypatch.setattr(StoreTransaction, "write_job", fail)
        await worker.send(complete(task.row))

        assert await backend.ledger.get_task(waiting.id) == waiting
        page = await backend.events.query("acme", limit=99)
        database = source._database  # type: ignore[attr-defined]
        entries = [
            entry
            for (data,) in database.point("SELECT entries FROM feed")
            for entry in feed_entries(data)
        ]
        assert len(entries) == len(page.items)


@scenario
async def test_a_claim_reads_no_more_tasks_of_a_line_than_it_needs(tmp_path: Path) -> None:
    returned, steps = [], []
    for waiting in (20, 200):
        worked = StatementCounter()
        with worked.watching():
            async with sqlite_backend(tmp_path / str(waiting), FakeClock(START)) as backend:
                for number in range(waiting):
                    for tenant in ("acme", "zenith", "umbra"):
                        key, job_id = f"t{number}", f"job-{tenant}"
                        task = new_task(key, job_id=job_id, number=number, tenant=tenant)
                        await commit(backend, task)
                worker = await join(source_of(backend))
                await worker.claim(1)  # texts are read once

                with worked:
                    claimed = await worker.claim(12)

        assert len(claimed) == 12
        returned.append(worked.rows_returned)
        steps.append(worked.vm_steps)

    assert returned[0] == returned[1] < 60
    assert steps[1] < steps[0] * 1.1
