"""The ledger's clauses about ends that were not recorded, notified or reported."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from longshore.core.jobs import job
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    JOB,
    apply_command,
    apply_job_command,
    claim,
    commit,
    commit_job,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import START, TICK, PortContract, clause

SECOND = timedelta(seconds=1)
LAST = 9_999  # the number of the last task of a large job


class UnrecordedEndClauses(PortContract):
    """``unrecorded_ends``."""

    @clause
    async def test_an_end_of_which_its_job_does_not_know_is_found(self, backend: Backend) -> None:
        await _a_job(backend, total=LAST + 1)
        completed = await _completed(backend, "a", number=0)
        failed = await _failed(backend, "b", number=1)
        pending = await commit(backend, new_task("c", number=LAST))
        cancelled = await commit(backend, apply_command(pending, c.RequestCancel(by="ann")))

        ids = await _unrecorded(backend)

        assert ids == [completed.id, failed.id, cancelled.id]

    @clause
    async def test_an_end_is_unrecorded_until_its_job_knows_of_it(self, backend: Backend) -> None:
        row = await _a_job(backend, total=LAST + 1)
        early = await _completed(backend, "a", number=0)
        late = await _failed(backend, "b", number=LAST)

        row = await commit_job(backend, apply_job_command(row, _ended(early)))
        one_is_known = await _unrecorded(backend)
        await commit_job(backend, apply_job_command(row, _ended(late)))

        assert one_is_known == [late.id]
        assert await _unrecorded(backend) == []

    @clause
    async def test_an_end_is_unrecorded_from_its_moment_on(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _a_job(backend, total=2)
        clock.advance(SECOND)
        row = await _completed(backend, "a", number=0, now=clock.now())
        assert row.finished_at is not None

        assert await _unrecorded(backend, ended_by=row.finished_at - TICK) == []
        assert await _unrecorded(backend, ended_by=row.finished_at) == [row.id]

    @clause
    async def test_what_has_not_ended_is_not_unrecorded(self, backend: Backend) -> None:
        await _a_job(backend, total=4)
        await commit(backend, new_task("waiting", number=0, awaits=[1]))
        pending = await commit(backend, new_task("pending", number=1))
        await commit(backend, claim(await commit(backend, new_task("held", number=2))))
        failed = await _failed(backend, "resumed", number=3)
        await commit(backend, apply_command(failed, c.Resume(round=2, by="ann")))

        assert pending.state is TaskState.PENDING
        assert await _unrecorded(backend) == []

    @clause
    async def test_an_end_in_a_job_that_is_over_is_found_only_without_a_bus(
        self, backend: Backend
    ) -> None:
        row = await _a_job(backend, total=2)
        failed = await _failed(backend, "a", number=0)
        behind = await commit(backend, new_task("b", number=1, awaits=[0]))
        row = await commit_job(backend, apply_job_command(row, _ended(failed, blocks=[1])))
        await commit(backend, apply_command(behind, c.RequestCancel(by="ann")))
        await _completed(backend, "a", number=0, job_id="job-none")

        assert row.state is JobState.FAILED
        assert await _unrecorded(backend) == ([behind.id] if backend.bus is None else [])

    @clause
    async def test_unrecorded_ends_come_by_job_and_id_up_to_the_limit_and_on_from_there(
        self, backend: Backend
    ) -> None:
        expected = []
        for job_id in ("job-b", "job-a", "job-a-longer"):
            await _a_job(backend, job_id, total=4)
            for number, key in enumerate(("c", "a", "b")):
                await _completed(backend, key, number=number, job_id=job_id)
        for job_id in ("job-a", "job-a-longer", "job-b"):
            expected += [f"{job_id}_{key}" for key in ("a", "b", "c")]

        assert await _unrecorded(backend, limit=100) == expected
        assert await _page_by_page(lambda at: _unrecorded(backend, limit=2, after=at)) == expected

    @clause
    async def test_unrecorded_ends_are_found_among_however_many_jobs(
        self, backend: Backend
    ) -> None:
        jobs = [f"job-{number:03}" for number in range(70)]
        for job_id in jobs:
            await _a_job(backend, job_id, total=2)
            await _completed(backend, "a", number=0, job_id=job_id)

        assert await _unrecorded(backend, limit=100) == [f"{job_id}_a" for job_id in jobs]


class UnnotifiedDependentClauses(PortContract):
    """``unnotified_dependents``."""

    @clause
    async def test_a_waiting_task_is_found_if_its_job_knows_that_a_parent_has_completed(
        self, backend: Backend
    ) -> None:
        row = await _a_job(backend, total=LAST + 1)
        parent = await _completed(backend, "parent", number=LAST)
        child = await commit(backend, new_task("one", number=1, awaits=[LAST]))
        some = await commit(backend, new_task("some", number=2, awaits=[1, LAST]))
        await commit(backend, new_task("others", number=3, awaits=[1, LAST - 1]))
        before = await backend.ledger.unnotified_dependents(limit=10)

        await commit_job(backend, apply_job_command(row, _ended(parent)))

        assert before == []
        assert await backend.ledger.unnotified_dependents(limit=10) == [child.id, some.id]

    @clause
    async def test_a_task_that_was_notified_of_its_parents_is_not_found(
        self, backend: Backend
    ) -> None:
        row = await _a_job(backend, total=4)
        parent = await _completed(backend, "parent", number=0)
        pending = await commit(backend, new_task("pending", number=1, awaits=[0]))
        waiting = await commit(backend, new_task("waiting", number=2, awaits=[0, 3]))
        for child in (pending, waiting):
            command = c.ParentsCompleted(numbers=NumberSet([0]))
            await commit(backend, apply_command(child, command))

        await commit_job(backend, apply_job_command(row, _ended(parent)))

        assert await backend.ledger.unnotified_dependents(limit=10) == []

    @clause
    async def test_only_what_completed_is_a_reason_to_go_on_and_only_in_a_job_that_runs(
        self, backend: Backend
    ) -> None:
        running = await _a_job(backend, "job-running", total=3)
        failed = await _failed(backend, "a", number=0, job_id="job-running")
        await commit(backend, new_task("b", number=1, awaits=[0], job_id="job-running"))
        await commit_job(backend, apply_job_command(running, _ended(failed, blocks=[1])))
        over = await _a_job(backend, "job-over", total=3)
        ends = [
            await _completed(backend, "a", number=0, job_id="job-over"),
            await _failed(backend, "b", number=1, job_id="job-over"),
        ]
        await commit(backend, new_task("c", number=2, awaits=[0, 1], job_id="job-over"))
        await commit_job(backend, apply_job_command(over, _ended(*ends, blocks=[2])))

        assert await backend.ledger.unnotified_dependents(limit=10) == []

    @clause
    async def test_unnotified_dependents_come_by_job_and_id_up_to_the_limit_and_on_from_there(
        self, backend: Backend
    ) -> None:
        expected = []
        for job_id in ("job-b", "job-a", "job-a-longer"):
            row = await _a_job(backend, job_id, total=5)
            parent = await _completed(backend, "parent", number=0, job_id=job_id)
            for number, key in enumerate(("c", "a", "b"), start=1):
                await commit(backend, new_task(key, number=number, awaits=[0], job_id=job_id))
            await commit_job(backend, apply_job_command(row, _ended(parent)))
        for job_id in ("job-a", "job-a-longer", "job-b"):
            expected += [f"{job_id}_{key}" for key in ("a", "b", "c")]

        assert await backend.ledger.unnotified_dependents(limit=100) == expected
        assert expected == await _page_by_page(
            lambda at: backend.ledger.unnotified_dependents(limit=2, after=at)
        )


class UnreportedEndClauses(PortContract):
    """``unreported_ends``."""

    @clause
    async def test_an_ended_job_is_found_until_its_end_is_reported(self, backend: Backend) -> None:
        completed = await _a_job(backend, "job-a", total=1, completed=[0])
        cancelled = await _a_job(
            backend, "job-b", total=1, cancelled=[0], end_emitted_round=1, round=2
        )
        before = await backend.ledger.unreported_ends(limit=10)

        for row in (completed, cancelled):
            await commit_job(backend, apply_job_command(row, job.TasksEnded(tasks=())))

        assert before == ["job-a", "job-b"]
        assert await backend.ledger.unreported_ends(limit=10) == []

    @clause
    async def test_a_job_that_runs_has_failed_or_reported_its_end_is_not_unreported(
        self, backend: Backend
    ) -> None:
        await _a_job(backend, "job-running", total=2, completed=[0])
        await _a_job(backend, "job-failed", total=1, failed=[0])
        await _a_job(backend, "job-reported", total=1, completed=[0], end_emitted_round=1)

        assert await backend.ledger.unreported_ends(limit=10) == []

    @clause
    async def test_unreported_ends_come_in_order_up_to_the_limit_and_on_from_there(
        self, backend: Backend
    ) -> None:
        for number in (3, 0, 2, 4, 1):
            await _a_job(backend, f"job-{number}", total=1, completed=[0])

        assert await backend.ledger.unreported_ends(limit=2) == ["job-0", "job-1"]
        assert await backend.ledger.unreported_ends(limit=10, after="job-1") == [
            "job-2",
            "job-3",
            "job-4",
        ]


async def _a_job(
    backend: Backend,
    job_id: str = JOB,
    *,
    total: int,
    completed: Iterable[int] = (),
    failed: Iterable[int] = (),
    cancelled: Iterable[int] = (),
    end_emitted_round: int = 0,
    round: int = 1,
) -> JobRow:
    row = replace(
        new_job(job_id).row,
        total=total,
        completed=NumberSet(completed),
        failed=NumberSet(failed),
        cancelled=NumberSet(cancelled),
        end_emitted_round=end_emitted_round,
        round=round,
        last_sequence=0,
        last_event_at=None,
    )
    await backend.ledger.commit(Change(row=row, expected_version=0))
    return row


async def _completed(
    backend: Backend, key: str, *, number: int, job_id: str = JOB, now: datetime = START
) -> TaskRow:
    pending = await commit(backend, new_task(key, number=number, job_id=job_id, now=now))
    leased = await commit(backend, claim(pending, now=now))
    done = c.Complete(fence=leased.fence, result=None, duration=SECOND)
    return await commit(backend, apply_command(leased, done, now=now))


async def _failed(backend: Backend, key: str, *, number: int, job_id: str = JOB) -> TaskRow:
    pending = await commit(backend, new_task(key, number=number, job_id=job_id))
    failure = Failure(category=ErrorCategory.AUTH, message="no")
    ended = c.FailTask(failure=failure, source="dlq", margin=SECOND)
    return await commit(backend, apply_command(pending, ended))


def _ended(*rows: TaskRow, blocks: Iterable[int] = ()) -> job.TasksEnded:
    return job.TasksEnded(
        tasks=tuple(
            job.EndedTask(
                number=row.spec.number,
                key=row.spec.key,
                round=row.round,
                state=row.state,
                blocks=NumberSet(blocks) if row.state is not TaskState.COMPLETED else NumberSet(),
            )
            for row in rows
        )
    )


async def _unrecorded(
    backend: Backend,
    *,
    ended_by: datetime = START + SECOND,
    limit: int = 10,
    after: str = "",
) -> list[str]:
    return await backend.ledger.unrecorded_ends(ended_by=ended_by, limit=limit, after=after)


async def _page_by_page(read_page: Callable[[str], Awaitable[list[str]]]) -> list[str]:
    """Everything, each page asked for after the last of the one before."""
    ids: list[str] = []
    for _ in range(20):
        page = await read_page(ids[-1] if ids else "")
        if not page:
            return ids
        ids += page
    message = "twenty small pages, and still no end"
    raise AssertionError(message)
