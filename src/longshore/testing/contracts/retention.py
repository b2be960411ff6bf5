"""The contract of ``Retention``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from longshore.core.events.event import Event
from longshore.core.events.types import EntityType
from longshore.core.ids import split_task_id
from longshore.core.jobs import job
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import Intent, JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import VersionConflict
from longshore.ports.backend import Backend
from longshore.ports.output import OutputChunk, Stream
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    TENANT,
    an_intent,
    append_event,
    apply_command,
    apply_job_command,
    claim,
    commit,
    commit_job,
    new_job,
    new_task,
)
from longshore.testing.contracts.suite import START, TICK, PortContract, clause, gather_all

SECOND = timedelta(seconds=1)
UNTIL = START + timedelta(days=1)
OTHER_EVENTS_AGE = timedelta(days=30)
"""For backends that remove old events without a job by themselves."""
ENDED_BY = START + SECOND


class RetentionContract(PortContract):
    """Every clause about the removal of jobs."""

    @clause
    async def test_a_job_has_ended_from_its_last_change_on(self, backend: Backend) -> None:
        await _ended_job(backend, "job-one", now=START + SECOND)

        assert await _ended(backend, ended_by=START + SECOND - timedelta(milliseconds=1)) == []
        assert await _ended(backend, ended_by=START + SECOND) == ["job-one"]

    @clause
    async def test_ended_jobs_are_found_up_to_the_limit_and_by_tenant(
        self, backend: Backend
    ) -> None:
        for number, tenant in enumerate(("acme", "other", "acme")):
            await _ended_job(backend, f"job-{number}", tenant=tenant)

        assert len(await _ended(backend, limit=2)) == 2
        assert await _ended(backend) == ["job-0", "job-1", "job-2"]
        assert await _ended(backend, tenant="other") == ["job-1"]
        assert await _ended(backend, tenant="none") == []

    @clause
    async def test_what_can_still_run_has_not_ended(self, backend: Backend) -> None:
        """Such jobs are not found, and are not removed by a caller who found them earlier."""
        await create_running_job(backend, "job-running")
        await create_running_job(backend, "job-intent", intent=an_intent())
        _, row = await create_running_job(backend, "job-review", requires_review=True)
        row = await commit(backend, apply_command(row, _succeeded(row)))
        assert row.state is TaskState.IN_REVIEW
        resumed = await _ended_job(backend, "job-resumed", fails=True)
        command = job.ResumeJob(numbers=NumberSet([0]), keys=("a",), blocked=NumberSet(), by="ann")
        await commit_job(backend, apply_job_command(resumed, command))
        _, row = await create_running_job(backend, "job-unrecorded")
        await commit(backend, apply_command(row, _succeeded(row)))
        unreported = replace(new_job("job-unreported").row, completed=NumberSet([0]))
        await backend.ledger.commit(Change(row=unreported, expected_version=0))
        names = ("running", "intent", "review", "resumed", "unrecorded", "unreported")

        assert await _ended(backend) == []
        assert await _remove(backend, *(f"job-{name}" for name in names)) == []
        assert all([await backend.ledger.get_job(f"job-{name}") for name in names])

    @clause
    async def test_a_failed_job_ends_although_tasks_wait_behind_the_failed_one(
        self, backend: Backend
    ) -> None:
        row, task = await create_running_job(backend, "job-one", total=2)
        await commit(backend, new_task("b", job_id="job-one", number=1, awaits=[0]))
        failed = await commit(backend, apply_command(task, attempt_failed(task)))
        await commit_job(backend, apply_job_command(row, end_recorded(failed, blocks=[1])))

        assert await _ended(backend) == ["job-one"]
        assert await _remove(backend, "job-one") == ["job-one"]
        assert await backend.ledger.get_task("job-one_b") is None

    @clause
    async def test_a_task_whose_end_is_not_recorded_keeps_its_job(self, backend: Backend) -> None:
        row, task = await create_running_job(backend, "job-one", total=2)
        waiting = await commit(backend, new_task("b", job_id="job-one", number=1, awaits=[0]))
        failed = await commit(backend, apply_command(task, attempt_failed(task)))
        await commit_job(backend, apply_job_command(row, end_recorded(failed, blocks=[1])))
        await commit(backend, apply_command(waiting, c.RequestCancel(by="ann")))

        assert await _ended(backend) == []
        assert await _remove(backend, "job-one") == []

    @clause
    async def test_nothing_of_a_removed_job_is_left(self, backend: Backend) -> None:
        await _ended_job(backend, "job-one")
        await _ended_job(backend, "job-two")
        for job_id in ("job-one", "job-two"):
            await backend.output.append(f"{job_id}_a", [chunk(1)])
            for key in blob_keys(job_id):
                await backend.blobs.put(key, b"x" * 100_000)

        assert await _remove(backend, "job-one") == ["job-one"]
        kept_until_then = await backend.blobs.list_keys("")
        assert await backend.require_retention().remove_remains(now=START, limit=10) == 1
        assert await backend.require_retention().remove_remains(now=START, limit=10) == 0

        assert len(kept_until_then) == 2 * len(blob_keys("job-one"))
        assert await backend.ledger.get_job("job-one") is None
        assert await backend.ledger.get_task("job-one_a") is None
        assert await backend.output.read("job-one_a") == []
        assert await backend.events.history(TENANT, "TASK#job-one_a") == []
        assert await backend.events.history(TENANT, "JOB#job-one") == []
        assert await backend.ledger.find_ids(TENANT, "job-") == ["job-two", "job-two_a"]
        assert sorted(await backend.blobs.list_keys("")) == sorted(blob_keys("job-two"))
        assert len(await backend.output.read("job-two_a")) == 1
        listed = await backend.ledger.list_jobs(TENANT)
        assert [row.id for row in listed.items] == ["job-two"]

    @clause
    async def test_readers_of_events_continue_after_events_that_were_removed(
        self, backend: Backend
    ) -> None:
        await _ended_job(backend, "job-kept")
        for number in range(200):
            now = START + (number + 1) * timedelta(milliseconds=4)
            await _ended_job(backend, f"job-{number}", now=now)
        before = await backend.events.query(TENANT, limit=1000)
        await _ended_job(backend, "job-last", now=ENDED_BY)
        rest = before.cursors[len(before.items) // 2]

        assert len(await _remove(backend, *(f"job-{number}" for number in range(200)))) == 200
        everything = await backend.events.query(TENANT, limit=1000)
        after = await backend.events.query(TENANT, limit=1000, cursor=rest)
        of_type = await backend.events.query(TENANT, limit=1000, event_type="Job Created")

        assert _jobs_of(everything.items) == {"job-kept", "job-last"}
        assert _jobs_of(after.items) == {"job-last"}
        assert _jobs_of(of_type.items) == {"job-kept", "job-last"}

    @clause
    async def test_a_follower_misses_no_event_after_the_latest_ones_were_removed(
        self, backend: Backend
    ) -> None:
        await append_event(backend)
        await _ended_job(backend, "job-one")
        cursor = (await backend.events.query(TENANT)).cursors[-1]

        assert await _remove(backend, "job-one") == ["job-one"]
        await create_running_job(backend, "job-two", now=ENDED_BY)
        new = await backend.events.query(TENANT, cursor=cursor)
        everything = await backend.events.query(TENANT)

        assert _jobs_of(new.items) == {"job-two"}
        assert len(everything.items) == len(new.items) + 1

    @clause
    async def test_the_id_of_a_removed_job_is_not_used_again(self, backend: Backend) -> None:
        await _ended_job(backend, "job-one")
        created, task = new_job("job-one"), new_task("a", job_id="job-one")
        assert not await backend.require_retention().is_removed("job-one")

        await _remove(backend, "job-one")
        for change in (created, task):
            with pytest.raises(VersionConflict):
                await backend.ledger.commit(change)

        assert await backend.require_retention().is_removed("job-one")
        assert not await backend.require_retention().is_removed("job-two")
        assert await backend.ledger.get_job("job-one") is None
        assert await backend.ledger.get_task("job-one_a") is None

    @clause
    async def test_late_output_of_a_removed_job_is_not_stored(self, backend: Backend) -> None:
        await _ended_job(backend, "job-one")
        await _remove(backend, "job-one")

        await backend.output.append("job-one_a", [chunk(1)])

        assert await backend.output.read("job-one_a") == []

    @clause
    async def test_a_tombstone_goes_at_its_time_with_what_was_stored_late(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _ended_job(backend, "job-one")
        await _remove(backend, "job-one")
        await backend.require_retention().remove_remains(now=START, limit=10)
        await backend.blobs.put("jobs/job-one/late.json", b"late")

        early = await backend.require_retention().remove_remains(now=UNTIL - SECOND, limit=10)
        was_removed = await backend.require_retention().is_removed("job-one")
        clock.advance(UNTIL + TICK - START)
        in_time = await backend.require_retention().remove_remains(now=UNTIL + TICK, limit=10)

        assert (early, was_removed, in_time) == (0, True, 1)
        assert not await backend.require_retention().is_removed("job-one")
        assert await backend.blobs.list_keys("") == []
        await _ended_job(backend, "job-one")
        assert await _ended(backend) == ["job-one"]

    @clause
    async def test_old_events_without_a_job_are_removed(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        """A backend may be built with their age, which is that of this clause."""
        await _ended_job(backend, "job-one")
        for second in range(3):
            await append_event(backend, now=START + second * SECOND)
        cursor = (await backend.events.query(TENANT)).cursors[-1]
        clock.advance(OTHER_EVENTS_AGE)
        new = await append_event(backend, now=clock.now())
        clock.advance(2 * SECOND)

        port, before = backend.require_retention(), clock.now() - OTHER_EVENTS_AGE
        while await port.remove_other_events(before=before, limit=2) == 2:
            pass
        following = await append_event(backend, now=clock.now())
        everything = await backend.events.query(TENANT)
        later = await backend.events.query(TENANT, cursor=cursor)

        assert await backend.events.history(TENANT, new.entity) == [new, following]
        assert following.sequence == 5
        assert _jobs_of(everything.items) == {"job-one"}
        assert [event for event in everything.items if event.entity == new.entity] == [
            *(new, following)
        ]
        assert list(later.items) == [new, following]

    @clause
    async def test_the_last_event_of_an_entity_continues_its_sequence(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await append_event(backend)
        clock.advance(2 * OTHER_EVENTS_AGE)

        port = backend.require_retention()
        await port.remove_other_events(before=clock.now() - OTHER_EVENTS_AGE, limit=10)

        assert (await append_event(backend, now=clock.now())).sequence == 2

    @clause
    async def test_of_a_resume_and_a_removal_one_is_refused(self, backend: Backend) -> None:
        for number in range(self.rounds):
            job_id = f"job-{number}"
            row = await _ended_job(backend, job_id, fails=True)
            command = job.ResumeJob(
                numbers=NumberSet([0]), keys=("a",), blocked=NumberSet(), by="ann"
            )
            resume = backend.ledger.commit(apply_job_command(row, command))
            removal = _remove(backend, job_id)
            pair = (resume, removal) if number % 2 else (removal, resume)
            answers = await gather_all(pair)
            resumed, removed = answers if number % 2 else reversed(answers)

            refused = isinstance(resumed, VersionConflict)
            assert removed == ([job_id] if refused else [])
            exists = await backend.ledger.get_job(job_id) is not None
            assert exists is not refused


async def _ended(
    backend: Backend,
    *,
    ended_by: datetime = ENDED_BY,
    limit: int = 10_000,
    tenant: str | None = None,
) -> list[str]:
    port = backend.require_retention()
    return sorted(await port.ended_jobs(ended_by=ended_by, limit=limit, tenant=tenant))


async def _remove(backend: Backend, *job_ids: str) -> list[str]:
    return await backend.require_retention().remove_jobs(
        job_ids, ended_by=ENDED_BY, remember_until=UNTIL
    )


async def create_running_job(
    backend: Backend,
    job_id: str,
    *,
    total: int = 1,
    tenant: str = TENANT,
    now: datetime = START,
    intent: Intent | None = None,
    requires_review: bool = False,
) -> tuple[JobRow, TaskRow]:
    """A job of which a worker holds the first task."""
    change = new_job(job_id, now=now, tenant=tenant, intent=intent)
    row = await commit_job(backend, replace(change, row=replace(change.row, total=total)))
    created = new_task(
        "a",
        job_id=job_id,
        number=0,
        now=now,
        tenant=tenant,
        requires_review=requires_review,
    )
    pending = await commit(backend, created)
    return row, await commit(backend, claim(pending, now=now))


def _succeeded(row: TaskRow) -> c.Complete:
    return c.Complete(fence=row.fence, result=None, duration=SECOND)


def attempt_failed(row: TaskRow) -> c.AttemptFailed:
    failure = Failure(category=ErrorCategory.AUTH, message="no")
    return c.AttemptFailed(fence=row.fence, failure=failure, jitter=0.0, duration=SECOND)


def end_recorded(row: TaskRow, *, blocks: Iterable[int] = ()) -> job.TasksEnded:
    ended = job.EndedTask(
        number=row.spec.number,
        key=row.spec.key,
        round=row.round,
        state=row.state,
        blocks=NumberSet(blocks),
    )
    return job.TasksEnded(tasks=(ended,))


async def _ended_job(
    backend: Backend,
    job_id: str,
    *,
    now: datetime = START,
    tenant: str = TENANT,
    fails: bool = False,
) -> JobRow:
    row, task = await create_running_job(backend, job_id, tenant=tenant, now=now)
    command = attempt_failed(task) if fails else _succeeded(task)
    ended = await commit(backend, apply_command(task, command, now=now))
    return await commit_job(backend, apply_job_command(row, end_recorded(ended), now=now))


def blob_keys(job_id: str) -> list[str]:
    return [
        f"jobs/{job_id}/tasks/a/result-1.json",
        f"events/{job_id}/c/e-payload.json",
        f"events/{job_id}_a/c/e-payload.json",
        f"task/logs/{job_id}_a/attempt-1/artifacts/a.txt",
    ]


def _jobs_of(events: Iterable[Event]) -> set[str]:
    entities = (event for event in events if event.entity_type is not EntityType.QUEUE)
    return {split_task_id(event.entity_id)[0] for event in entities}


def chunk(sequence: int) -> OutputChunk:
    return OutputChunk(attempt=1, sequence=sequence, at=START, stream=Stream.STDOUT, data=b"line\n")
