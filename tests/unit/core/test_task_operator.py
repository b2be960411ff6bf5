"""What users, reviewers, operators and the dispatcher can ask of a task, and what comes of it."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.maximums import FEEDBACK_LIMIT_CHARACTERS, MAX_REVISIONS
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Enqueue, Refusal, RefusalReason, Wake
from longshore.core.tasks.rows import CancelRequest, TaskRow
from longshore.core.tasks.states import Priority, TaskState
from longshore.core.tasks.task import TaskChange, apply, create
from tests.factories import (
    NOON,
    SECOND,
    a_cancel_request,
    a_document,
    a_spec,
    a_task,
    changed,
    refused,
)

LATER = NOON + 10 * SECOND
TOMORROW = NOON + timedelta(days=1)
OPERATOR = EventContext(origin="operator", source="user")


def change_of(row: TaskRow, command: c.Command, *, now: datetime = LATER) -> TaskChange:
    return changed(apply(row, command, now=now, change_id="new"))


def refusal_of(row: TaskRow, command: c.Command, *, now: datetime = LATER) -> Refusal:
    return refused(apply(row, command, now=now, change_id="new"))


class TestCreate:
    def test_a_task_that_awaits_no_parent_is_pending_at_once(self) -> None:
        spec = a_spec(parents=a_document('["b"]'))

        change = create(spec, NO_NUMBERS, now=NOON, change_id="first")

        assert (change.expected_version, change.row.version) == (0, 1)
        assert (change.row.state, change.row.change_id) == (TaskState.PENDING, "first")
        assert (change.row.due_at, change.row.enqueued_at) == (NOON, NOON)
        assert (change.row.attempt, change.row.fence, change.row.round) == (0, 0, 1)
        assert change.effects == (Enqueue(spec.id, "default", Priority.NORMAL, NOON),)
        assert [event.body for event in change.events] == [
            e.TaskPending(
                task_id=spec.id,
                job_id=spec.job_id,
                name="command",
                depends_on=spec.parents,
                round=1,
            )
        ]
        assert change.events[0].context == EventContext(origin="producer", source="user")

    def test_a_task_that_awaits_others_is_silent(self) -> None:
        change = create(a_spec(), NumberSet([1, 2]), now=NOON, change_id="first")

        assert (change.row.state, change.row.awaits) == (TaskState.WAITING, NumberSet([1, 2]))
        assert (change.row.version, change.row.last_sequence) == (1, 0)
        assert (change.row.due_at, change.row.last_event_at) == (None, None)
        assert (change.events, change.effects) == ((), ())

    def test_a_task_for_later_is_enqueued_for_that_time(self) -> None:
        change = create(a_spec(not_before=TOMORROW), NO_NUMBERS, now=NOON, change_id="first")

        (event,) = change.events
        assert (change.row.due_at, change.row.enqueued_at) == (TOMORROW, NOON)
        assert change.effects == (Enqueue(change.row.id, "default", Priority.NORMAL, TOMORROW),)
        assert isinstance(event.body, e.TaskPending)
        assert event.body.due_at == TOMORROW

    def test_a_moment_that_has_passed_is_now(self) -> None:
        change = create(a_spec(not_before=NOON), NO_NUMBERS, now=LATER, change_id="first")

        (event,) = change.events
        assert change.row.due_at == LATER
        assert isinstance(event.body, e.TaskPending)
        assert event.body.due_at is None


class TestParentsDone:
    def test_a_task_waits_until_the_last_of_its_parents_is_done(self) -> None:
        row = a_task(state=TaskState.WAITING, awaits=NumberSet([1, 2, 3]))

        some = change_of(row, c.ParentsCompleted(numbers=NumberSet([1, 3, 9])))
        rest = change_of(some.row, c.ParentsCompleted(numbers=NumberSet([2])))

        assert (some.row.state, some.row.awaits) == (TaskState.WAITING, NumberSet([2]))
        assert (some.events, some.effects) == ((), ())
        assert (rest.row.state, rest.row.awaits) == (TaskState.PENDING, NO_NUMBERS)
        assert rest.row.due_at == LATER
        assert [event.type for event in rest.events] == ["Task Pending"]
        assert rest.events[0].context == EventContext(origin="dispatcher")
        assert len(rest.effects) == 1

    def test_a_parent_that_is_reported_twice_changes_nothing_the_second_time(self) -> None:
        row = a_task(state=TaskState.WAITING, awaits=NumberSet([2]))

        refusal = refusal_of(row, c.ParentsCompleted(numbers=NumberSet([1])))

        assert refusal.reason is RefusalReason.NOTHING_TO_DO

    @pytest.mark.parametrize("state", [s for s in TaskState if s is not TaskState.WAITING])
    def test_a_task_that_is_not_waiting_is_not_dispatched(self, state: TaskState) -> None:
        row = a_task(state=state, awaits=NumberSet([1]))

        refusal = refusal_of(row, c.ParentsCompleted(numbers=NumberSet([1])))

        assert refusal.reason is RefusalReason.NOTHING_TO_DO


class TestCancel:
    REQUEST = c.RequestCancel(by="bob", reason="too late")

    @pytest.mark.parametrize("state", [TaskState.WAITING, TaskState.PENDING, TaskState.IN_REVIEW])
    def test_a_task_without_a_lease_is_cancelled_at_once(self, state: TaskState) -> None:
        row = a_task(state=state, last_output=4)

        change = change_of(row, self.REQUEST)

        assert (change.row.state, change.row.finished_at) == (TaskState.CANCELLED, LATER)
        assert change.row.cancel == CancelRequest(by="bob", reason="too late", at=LATER)
        assert (change.row.due_at, change.row.enqueued_at) == (None, None)
        assert change.row.last_output == 4
        assert change.effects == ()
        assert [event.body for event in change.events] == [
            e.TaskCancelled(task_id=row.id, job_id=row.spec.job_id, by="bob", reason="too late")
        ]
        assert change.events[0].context == OPERATOR

    def test_the_worker_that_runs_a_task_is_asked_to_end_it(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        change = change_of(row, self.REQUEST)

        assert (change.row.state, change.row.lease) == (TaskState.PROCESSING, row.lease)
        assert change.row.cancel == CancelRequest(by="bob", reason="too late", at=LATER)
        assert change.effects == (Wake("worker-1", row.id),)
        assert change.events == ()
        assert change.durable

    def test_asking_twice_changes_nothing(self) -> None:
        row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request())

        assert refusal_of(row, self.REQUEST).reason is RefusalReason.NOTHING_TO_DO

    @pytest.mark.parametrize("state", [state for state in TaskState if state.terminal])
    def test_what_has_ended_cannot_be_cancelled(self, state: TaskState) -> None:
        assert refusal_of(a_task(state=state), self.REQUEST).reason is RefusalReason.ENDED

    def test_a_task_that_was_resumed_after_its_job_was_cancelled_is_spared(self) -> None:
        row = a_task(round=3)

        late = refusal_of(row, replace(self.REQUEST, round=2))
        meant = change_of(row, replace(self.REQUEST, round=3))

        assert late.reason is RefusalReason.STALE_ROUND
        assert meant.row.state is TaskState.CANCELLED

    def test_the_worker_confirms_what_it_was_asked(self) -> None:
        row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request(), usage=e.Usage(turns=1))

        change = change_of(row, c.ConfirmCancel(fence=1, usage=e.Usage(turns=2), last_output=5))

        assert (change.row.state, change.row.lease) == (TaskState.CANCELLED, None)
        assert (change.row.usage, change.row.last_output) == (e.Usage(turns=3), 5)
        assert [event.body for event in change.events] == [
            e.TaskCancelled(
                task_id=row.id,
                job_id=row.spec.job_id,
                by="ann",
                reason="not needed",
                attempt_number=1,
                last_output=5,
                usage=e.Usage(turns=2),
            )
        ]
        assert change.events[0].context == EventContext(origin="worker", worker_id="worker-1")

    def test_a_worker_cannot_confirm_a_cancellation_that_was_not_requested(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        assert refusal_of(row, c.ConfirmCancel(fence=1)).reason is RefusalReason.WRONG_STATE


class TestReview:
    REVISION = c.RequestRevision(feedback="shorter", by="rita")

    def test_an_approval_completes_the_task_in_the_same_change(self) -> None:
        row = a_task(state=TaskState.IN_REVIEW, ran_for=3 * SECOND, exit_code=0, last_output=6)

        change = change_of(row, c.Approve(by="rita"))

        assert (change.row.state, change.row.finished_at) == (TaskState.COMPLETED, LATER)
        assert change.row.result == row.result
        assert [event.body for event in change.events] == [
            e.TaskApproved(task_id=row.id, job_id=row.spec.job_id, by="rita"),
            e.TaskCompleted(
                task_id=row.id,
                job_id=row.spec.job_id,
                attempt_number=1,
                output=row.result,
                duration=3 * SECOND,
                exit_code=0,
                last_output=6,
            ),
        ]
        assert {event.context for event in change.events} == {OPERATOR}

    def test_two_events_of_one_change_follow_each_other(self) -> None:
        row = a_task(state=TaskState.IN_REVIEW)

        first, second = change_of(row, c.Approve(by="rita")).events

        assert (first.sequence, second.sequence) == (row.last_sequence + 1, row.last_sequence + 2)
        assert second.at > first.at

    def test_a_revision_is_a_new_attempt_with_the_old_result_and_the_feedback(self) -> None:
        row = a_task(state=TaskState.IN_REVIEW, attempts_used=2, checkpoint="blobs/step-9")

        change = change_of(row, self.REVISION)

        assert (change.row.state, change.row.due_at) == (TaskState.PENDING, LATER)
        assert (change.row.feedback, change.row.revision) == ("shorter", 1)
        assert (change.row.previous_result, change.row.result) == (row.result, None)
        assert (change.row.attempt, change.row.attempts_used) == (1, 0)
        assert change.row.checkpoint is None
        assert change.row.enqueued_at == LATER
        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, LATER),)
        assert [event.body for event in change.events] == [
            e.TaskRevisionRequested(
                task_id=row.id,
                job_id=row.spec.job_id,
                feedback="shorter",
                revision=1,
                by="rita",
            )
        ]
        assert change.events[0].context == OPERATOR

    def test_the_last_revision_is_granted_and_the_next_is_not(self) -> None:
        last = a_task(state=TaskState.IN_REVIEW, revision=MAX_REVISIONS - 1)
        too_many = a_task(state=TaskState.IN_REVIEW, revision=MAX_REVISIONS)

        assert change_of(last, self.REVISION).row.revision == MAX_REVISIONS
        assert refusal_of(too_many, self.REVISION).reason is RefusalReason.LIMIT_REACHED

    @pytest.mark.parametrize("length", [1, FEEDBACK_LIMIT_CHARACTERS])
    def test_feedback_up_to_the_limit_is_taken(self, length: int) -> None:
        row = a_task(state=TaskState.IN_REVIEW)

        change = change_of(row, c.RequestRevision(feedback="x" * length, by="rita"))

        assert change.row.feedback == "x" * length

    @pytest.mark.parametrize(
        ("feedback", "detail"),
        [
            ("", "must not be empty"),
            (" \n\t", "must not be empty"),
            ("x" * (FEEDBACK_LIMIT_CHARACTERS + 1), "at most 5000 characters, and this has 5001"),
            ("half a \ud83d face", "lone surrogate"),
        ],
        ids=["nothing", "blank", "too long", "not text"],
    )
    def test_empty_or_too_long_feedback_is_refused(self, feedback: str, detail: str) -> None:
        row = a_task(state=TaskState.IN_REVIEW)

        refusal = refusal_of(row, c.RequestRevision(feedback=feedback, by="rita"))

        assert refusal.reason is RefusalReason.LIMIT_REACHED
        assert detail in refusal.detail

    @pytest.mark.parametrize("command", [c.Approve(by="rita"), REVISION], ids=["approve", "revise"])
    def test_a_reviewer_decides_on_the_result_that_was_seen(
        self, command: c.Approve | c.RequestRevision
    ) -> None:
        row = a_task(state=TaskState.IN_REVIEW, attempt=3)

        older = refusal_of(row, replace(command, attempt=2))
        seen = change_of(row, replace(command, attempt=3))

        assert older.reason is RefusalReason.WRONG_STATE
        assert "attempt 3, not of 2" in older.detail
        assert seen.row.state is not TaskState.IN_REVIEW

    @pytest.mark.parametrize("command", [c.Approve(by="rita"), REVISION], ids=["approve", "revise"])
    def test_only_what_is_in_review_is_reviewed(self, command: c.Command) -> None:
        pending = refusal_of(a_task(), command)
        ended = refusal_of(a_task(state=TaskState.COMPLETED), command)

        assert (pending.reason, ended.reason) == (RefusalReason.WRONG_STATE, RefusalReason.ENDED)


class TestEnqueueAgain:
    def test_a_due_task_is_enqueued_again_now(self) -> None:
        row = a_task(due_at=NOON, enqueued_at=NOON)

        change = change_of(row, c.EnqueueAgain())

        assert (change.row.enqueued_at, change.row.due_at) == (LATER, NOON)
        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, LATER),)
        assert change.events == ()
        assert not change.durable

    def test_a_task_that_is_not_due_is_enqueued_for_its_time(self) -> None:
        row = a_task(due_at=TOMORROW)

        change = change_of(row, c.EnqueueAgain())

        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, TOMORROW),)

    @pytest.mark.parametrize("state", [s for s in TaskState if s is not TaskState.PENDING])
    def test_only_a_pending_task_is_enqueued_again(self, state: TaskState) -> None:
        expected = RefusalReason.ENDED if state.terminal else RefusalReason.WRONG_STATE

        assert refusal_of(a_task(state=state, due_at=NOON), c.EnqueueAgain()).reason is expected

    def test_a_task_without_a_due_time_is_not_enqueued_again(self) -> None:
        assert refusal_of(a_task(due_at=None), c.EnqueueAgain()).reason is RefusalReason.WRONG_STATE


def test_events_never_go_back_in_time_even_if_the_clock_does() -> None:
    row = a_task(state=TaskState.IN_REVIEW)
    assert row.last_event_at == NOON

    first, second = change_of(row, c.Approve(by="rita"), now=NOON - SECOND).events

    tick = timedelta(milliseconds=1)
    assert (first.at, second.at) == (NOON + tick, NOON + 2 * tick)
