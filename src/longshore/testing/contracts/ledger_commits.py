"""The ledger's clauses about rows and commits: atomic, applied once, under the expected version."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import timedelta

import pytest

from longshore.core.documents import Document
from longshore.core.jobs import job
from longshore.core.queues import message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Change
from longshore.core.tasks.rows import TaskRow
from longshore.errors import UsageError, VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import (
    TENANT,
    an_intent,
    apply_command,
    apply_job_command,
    carry_out,
    check_messages,
    claim,
    commit,
    commit_job,
    drain,
    events_of,
    events_to_wire,
    leased_task,
    left_at_default,
    new_creations,
    new_job,
    new_task,
    receive_now,
)
from longshore.testing.contracts.suite import CALLERS, START, TICK, PortContract, clause, gather_all
from longshore.testing.full_samples import full_job_row, full_task_row


class CommitClauses(PortContract):
    """A change is committed once, whole, and only from the version it was decided on."""

    @clause
    async def test_a_second_creation_is_a_conflict_and_the_first_stays(
        self, backend: Backend
    ) -> None:
        first = await commit(backend, new_task())

        with pytest.raises(VersionConflict) as refused:
            await backend.ledger.commit(new_task(definition="other"))

        assert (refused.value.row_id, refused.value.expected) == (first.id, 0)
        assert await backend.ledger.get_task(first.id) == first

    @clause
    async def test_a_change_of_a_row_that_does_not_exist_is_a_conflict(
        self, backend: Backend
    ) -> None:
        never_committed = new_task().row

        with pytest.raises(VersionConflict):
            await backend.ledger.commit(claim(never_committed))

        assert await backend.ledger.get_task(never_committed.id) is None

    @clause
    async def test_a_change_from_an_old_version_is_a_conflict_and_writes_nothing(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        pending = await commit(backend, new_task())
        claimed = await commit(backend, claim(pending))
        await drain(backend)
        late = apply_command(pending, c.EnqueueAgain())

        with pytest.raises(VersionConflict):
            await backend.ledger.commit(late)

        assert await backend.ledger.get_task(pending.id) == claimed
        assert await events_of(backend, claimed) == claimed.last_sequence
        clock.advance(timedelta(hours=1))
        assert await drain(backend) == []

    @clause
    async def test_a_change_from_a_version_that_is_still_to_come_is_a_conflict(
        self, backend: Backend
    ) -> None:
        pending = await commit(backend, new_task())
        early = claim(replace(pending, version=2))

        with pytest.raises(VersionConflict):
            await backend.ledger.commit(early)

        assert await backend.ledger.get_task(pending.id) == pending

    @clause
    async def test_a_job_is_changed_only_from_its_current_version(self, backend: Backend) -> None:
        created = await commit_job(backend, new_job(intent=an_intent()))
        done = job.IntentDone(intent_id=an_intent().id)
        current = await commit_job(backend, apply_job_command(created, done))

        for version in (created.version, current.version + 1):
            stale = replace(apply_job_command(created, done), expected_version=version)
            with pytest.raises(VersionConflict):
                await backend.ledger.commit(stale)

        assert await backend.ledger.get_job(created.id) == current

    @clause
    async def test_the_same_change_again_is_success_and_writes_nothing_twice(
        self, backend: Backend
    ) -> None:
        created = new_task()
        await backend.ledger.commit(created)

        await backend.ledger.commit(created)

        assert await backend.ledger.get_task(created.row.id) == created.row
        assert await events_of(backend, created.row) == 1

    @clause
    async def test_a_change_that_was_overtaken_is_a_conflict_when_it_comes_again(
        self, backend: Backend
    ) -> None:
        created = new_task()
        await commit(backend, created)
        claimed = await commit(backend, claim(created.row))

        with pytest.raises(VersionConflict):
            await backend.ledger.commit(created)

        assert await backend.ledger.get_task(claimed.id) == claimed

    @clause
    async def test_of_many_who_change_one_version_exactly_one_wins(self, backend: Backend) -> None:
        for number in range(self.rounds):
            pending = await commit(backend, new_task(f"t{number}"))
            claims = [claim(pending, worker=f"w{caller}") for caller in range(CALLERS)]

            answers = await gather_all(backend.ledger.commit(change) for change in claims)

            winners = [n for n, answer in enumerate(answers) if isinstance(answer, tuple)]
            assert len(winners) == 1
            losers = [answer for answer in answers if type(answer) is VersionConflict]
            assert len(losers) == CALLERS - 1
            assert await backend.ledger.get_task(pending.id) == claims[winners[0]].row
            assert await events_of(backend, claims[0].row) == 2

    @clause
    async def test_of_many_who_create_one_row_exactly_one_wins(self, backend: Backend) -> None:
        for number in range(self.rounds):
            jobs = [new_job(f"job-{number}") for _ in range(CALLERS)]

            answers = await gather_all(backend.ledger.commit(change) for change in jobs)

            winners = [n for n, answer in enumerate(answers) if isinstance(answer, tuple)]
            assert len(winners) == 1
            assert await backend.ledger.get_job(f"job-{number}") == jobs[winners[0]].row

    @clause
    async def test_many_who_commit_the_same_change_all_succeed_and_it_is_written_once(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds):
            created = new_task(f"t{number}")

            answers = await gather_all(backend.ledger.commit(created) for _ in range(CALLERS))

            assert [a for a in answers if isinstance(a, BaseException)] == []
            assert await events_of(backend, created.row) == 1

    @clause
    async def test_the_history_has_the_rows_events_after_each_commit(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        created = new_task(requires_review=True)
        events = [*created.events]
        row = await commit(backend, created)
        for command in _task_commands():
            clock.advance(timedelta(seconds=1))
            change = apply_command(row, command, now=clock.now())
            events += change.events

            row = await commit(backend, change)

            history = await backend.events.history(TENANT, f"TASK#{row.id}")
            assert events_to_wire(history) == events_to_wire(events)
            assert len(history) == row.last_sequence

    @clause
    async def test_a_jobs_events_are_committed_with_its_row(self, backend: Backend) -> None:
        created = new_job()

        await commit_job(backend, created)

        history = await backend.events.history(TENANT, f"JOB#{created.row.id}")
        assert events_to_wire(history) == events_to_wire(created.events)

    @clause
    async def test_no_reader_sees_a_row_without_its_events_or_events_without_their_row(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds):
            created = new_task(f"t{number}")
            views: list[tuple[int, int, int]] = []

            watchers = [_record_views(backend, created.row, views) for _ in range(CALLERS)]
            await asyncio.gather(backend.ledger.commit(created), *watchers)

            assert len(views) == CALLERS
            assert [view for view in views if sorted(view) != list(view)] == []

    @clause
    async def test_two_changes_of_one_row_are_refused(self, backend: Backend) -> None:
        created = new_task()
        claimed = claim(created.row)

        with pytest.raises(UsageError):
            await backend.ledger.commit(created, claimed)

        assert await backend.ledger.get_task(created.row.id) is None


class MessageClauses(PortContract):
    """Commits that enqueue, where there is a queue."""

    @clause
    async def test_a_change_whose_answer_was_lost_still_enqueues_when_it_is_committed_again(
        self, backend: Backend
    ) -> None:
        created = new_task()
        await backend.ledger.commit(created)

        await carry_out(backend, await backend.ledger.commit(created))

        assert await drain(backend) == [message_body(created.row.id)]

    @clause
    async def test_a_message_is_on_the_queue_once_after_the_commit(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        created = await commit(backend, new_task(queue="agents"))

        assert await drain(backend, "agents") == [message_body(created.id)]
        clock.advance(timedelta(hours=1))
        assert await drain(backend, "agents") == []

    @clause
    async def test_a_message_for_later_is_received_at_its_time(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        created = await commit(backend, new_task(not_before=START + timedelta(minutes=1)))
        assert created.due_at is not None

        clock.advance(created.due_at - START - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert await drain(backend) == [message_body(created.id)]


def _task_commands() -> Iterator[c.Command]:
    """What happens to a task from its creation to its end, with and without events."""
    yield c.Claim(worker_id="w1", process_id=7, lease_duration=timedelta(minutes=1))
    yield c.Renew(fence=1, lease_duration=timedelta(minutes=1), process_id=7, rss_bytes=1 << 30)
    yield c.SaveCheckpoint(fence=1, key="jobs/job-one/step")
    yield c.Release(fence=1, reason="the worker stops", last_output=3)
    yield c.EnqueueAgain()
    yield c.Claim(worker_id="w2", process_id=8, lease_duration=timedelta(minutes=1))
    result = Document(text='{"pages":3}', size=11)
    yield c.Complete(fence=2, result=result, duration=timedelta(seconds=2), last_output=4)
    yield c.Approve(by="ann")


async def _record_views(backend: Backend, row: TaskRow, views: list[tuple[int, int, int]]) -> None:
    """Look at the events, at the row and at the events again: what is seen may only grow."""
    events_before = await events_of(backend, row)
    row_now = await backend.ledger.get_task(row.id)
    events_after = await events_of(backend, row)
    views.append((events_before, row_now.last_sequence if row_now else 0, events_after))


class RowClauses(PortContract):
    """What is committed is what is read."""

    @clause
    async def test_a_row_that_does_not_exist_is_none(self, backend: Backend) -> None:
        assert await backend.ledger.get_task("job-one_a") is None
        assert await backend.ledger.get_job("job-one") is None

    @clause
    async def test_a_created_task_is_read_as_it_was_committed(self, backend: Backend) -> None:
        created = await commit(backend, new_task())

        assert await backend.ledger.get_task(created.id) == created

    @clause
    async def test_every_field_of_a_task_is_kept(self, backend: Backend) -> None:
        row = full_task_row()
        parts = (row, row.spec, row.lease, row.failure, row.usage)
        assert [name for part in parts for name in left_at_default(part)] == []

        await backend.ledger.commit(Change(row=row, expected_version=0))

        stored = await backend.ledger.get_task(row.id)
        for field in fields(row):
            assert getattr(stored, field.name) == getattr(row, field.name), field.name

    @clause
    async def test_every_field_of_a_job_of_ten_thousand_tasks_is_kept(
        self, backend: Backend
    ) -> None:
        row = full_job_row()
        assert left_at_default(row) + left_at_default(row.spec) == []

        await backend.ledger.commit(Change(row=row, expected_version=0))

        stored = await backend.ledger.get_job(row.id)
        for field in fields(row):
            assert getattr(stored, field.name) == getattr(row, field.name), field.name

    @clause
    async def test_every_field_of_a_task_can_be_taken_back(self, backend: Backend) -> None:
        row = full_task_row()
        bare = replace(new_task("full").row, spec=row.spec, version=2)
        await backend.ledger.commit(Change(row=row, expected_version=0))

        await backend.ledger.commit(Change(row=bare, expected_version=1))

        assert await backend.ledger.get_task(row.id) == bare

    @clause
    async def test_a_later_commit_replaces_the_row(self, backend: Backend) -> None:
        claimed = await leased_task(backend)

        assert await backend.ledger.get_task(claimed.id) == claimed

    @clause
    async def test_rows_come_in_the_requested_order_without_missing_ones(
        self, backend: Backend
    ) -> None:
        created = {key: await commit(backend, new_task(key)) for key in ("a", "b", "c")}

        rows = await backend.ledger.get_tasks(
            ["job-one_c", "job-one_none", "job-one_a", "job-one_b"]
        )

        assert rows == [created["c"], created["a"], created["b"]]

    @clause
    async def test_an_empty_request_gives_no_rows(self, backend: Backend) -> None:
        await commit(backend, new_task())

        assert await backend.ledger.get_tasks([]) == []

    @clause
    async def test_thousands_of_rows_can_be_requested(self, backend: Backend) -> None:
        created = await commit(backend, new_task("t4999"))

        rows = await backend.ledger.get_tasks([f"job-one_t{number}" for number in range(5_000)])

        assert rows == [created]


class AtomicLedgerContract(PortContract):
    """A ledger that takes several changes in one step."""

    @clause
    async def test_it_is_atomic(self, backend: Backend) -> None:
        assert backend.ledger.atomic is True

    @clause
    async def test_several_changes_are_committed_with_their_events_and_messages(
        self, backend: Backend
    ) -> None:
        job, tasks = new_job(), [new_task(f"t{number}", number=number) for number in range(300)]

        await carry_out(backend, await backend.ledger.commit(job, *tasks))

        assert await backend.ledger.get_job(job.row.id) == job.row
        assert await backend.ledger.get_tasks([t.row.id for t in tasks]) == [t.row for t in tasks]
        assert await events_of(backend, tasks[299].row) == 1
        await check_messages(backend, *(task.row.id for task in tasks))

    @clause
    async def test_one_conflict_and_nothing_of_all_changes_is_written(
        self, backend: Backend
    ) -> None:
        taken = await commit(backend, new_task("taken"))
        await drain(backend)
        fresh = new_task("fresh")

        with pytest.raises(VersionConflict) as refused:
            await backend.ledger.commit(fresh, new_task("taken"), new_job())

        assert refused.value.row_id == taken.id
        assert await backend.ledger.get_task(fresh.row.id) is None
        assert await backend.ledger.get_job("job-one") is None
        assert await events_of(backend, fresh.row) == 0
        assert await drain(backend) == []

    @clause
    async def test_the_same_changes_again_are_success_and_written_once(
        self, backend: Backend
    ) -> None:
        changes = (new_job(), new_task("a"), new_task("b"))
        await backend.ledger.commit(*changes)

        await carry_out(backend, await backend.ledger.commit(*changes))

        assert await events_of(backend, changes[1].row) == 1
        await check_messages(backend, "job-one_a", "job-one_b")

    @clause
    async def test_of_many_who_commit_overlapping_changes_exactly_one_wins(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds):
            groups = [
                (new_task(f"own{number}-{caller}"), new_task(f"common{number}"))
                for caller in range(CALLERS)
            ]

            answers = await gather_all(backend.ledger.commit(*group) for group in groups)

            winners = [n for n, answer in enumerate(answers) if isinstance(answer, tuple)]
            assert len(winners) == 1
            rows = await backend.ledger.get_tasks([own.row.id for own, _ in groups])
            assert rows == [groups[winners[0]][0].row]

    @clause
    async def test_many_jobs_are_created_with_their_tasks_events_and_messages(
        self, backend: Backend
    ) -> None:
        creations = new_creations("job-one", "job-two", "job-three", tasks=3)

        answers = await backend.ledger.create_jobs(creations)

        assert all(isinstance(answer, tuple) for answer in answers)
        for answer in answers:
            await carry_out(backend, answer if isinstance(answer, tuple) else ())
        for created, tasks in (creation.changes() for creation in creations):
            assert await backend.ledger.get_job(created.row.id) == created.row
            rows = await backend.ledger.get_tasks([task.row.id for task in tasks])
            assert rows == [task.row for task in tasks]
            assert await events_of(backend, tasks[0].row) == 1
        await check_messages(backend, *(f"{creation.spec.id}_t0" for creation in creations))

    @clause
    async def test_a_job_that_exists_is_a_conflict_and_the_others_are_created(
        self, backend: Backend
    ) -> None:
        first = new_creations("job-one", tasks=2)
        await backend.ledger.create_jobs(first)
        creations = new_creations("job-two", "job-one", "job-three", tasks=1)

        before, conflict, after = await backend.ledger.create_jobs(creations)

        assert isinstance(before, tuple)
        assert isinstance(after, tuple)
        assert isinstance(conflict, VersionConflict)
        assert (conflict.row_id, conflict.expected) == ("job-one", 0)
        assert await backend.ledger.get_job("job-one") == first[0].changes()[0].row
        assert await backend.ledger.get_task("job-three_t0") == creations[2].changes()[1][0].row

    @clause
    async def test_of_two_jobs_with_one_id_in_one_call_the_first_is_created(
        self, backend: Backend
    ) -> None:
        creations = new_creations("job-one", "job-one", tasks=2)

        first, second = await backend.ledger.create_jobs(creations)

        assert isinstance(first, tuple)
        assert isinstance(second, VersionConflict)
        assert await backend.ledger.get_job("job-one") == creations[0].changes()[0].row

    @clause
    async def test_the_same_creations_again_are_success_and_written_once(
        self, backend: Backend
    ) -> None:
        creations = new_creations("job-one", "job-two", tasks=2)
        await backend.ledger.create_jobs(creations[:1])

        answers = await backend.ledger.create_jobs(creations)

        assert all(isinstance(answer, tuple) for answer in answers)
        for created, tasks in (creation.changes() for creation in creations):
            assert await backend.ledger.get_job(created.row.id) == created.row
            assert await events_of(backend, tasks[0].row) == 1

    @clause
    async def test_of_many_who_create_one_job_exactly_one_wins(self, backend: Backend) -> None:
        for number in range(self.rounds):
            job_id = f"job-{number}"
            calls = [new_creations(job_id, tasks=2) for _ in range(CALLERS)]

            answers = await gather_all(backend.ledger.create_jobs(call) for call in calls)

            winners = [
                n
                for n, answer in enumerate(answers)
                if isinstance(answer, list) and isinstance(answer[0], tuple)
            ]
            assert len(winners) == 1
            assert await backend.ledger.get_job(job_id) == calls[winners[0]][0].changes()[0].row


class SingleChangeLedgerContract(PortContract):
    """A ledger that takes one change at a time."""

    @clause
    async def test_it_is_not_atomic(self, backend: Backend) -> None:
        assert backend.ledger.atomic is False

    @clause
    async def test_several_changes_are_refused_and_nothing_is_written(
        self, backend: Backend
    ) -> None:
        with pytest.raises(UsageError):
            await backend.ledger.commit(new_task("a"), new_task("b"))

        assert await backend.ledger.get_tasks(["job-one_a", "job-one_b"]) == []

    @clause
    async def test_jobs_with_their_tasks_are_refused_and_nothing_is_written(
        self, backend: Backend
    ) -> None:
        with pytest.raises(UsageError):
            await backend.ledger.create_jobs(new_creations("job-one"))

        assert await backend.ledger.get_job("job-one") is None
