"""What others say of a task: that its worker fell silent, or that it has failed."""

from dataclasses import replace
from datetime import timedelta

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import RefusalReason
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import TaskState
from tests.factories import (
    LASTS,
    MARGIN,
    NOON,
    SECOND,
    a_cancel_request,
    a_failure,
    a_lease,
    a_task,
)
from tests.unit.core.attempt_commands import BEFORE, LATER, OVER, change_of, refusal_of, running

LEASE_ENDED = c.LeaseEnded(fence=3, margin=MARGIN)


class TestLeaseEnded:
    def test_a_lease_is_ended_by_others_at_its_end_and_the_margin_not_before(self) -> None:
        early = refusal_of(running(), LEASE_ENDED, now=OVER - timedelta(microseconds=1))
        in_time = change_of(running(), LEASE_ENDED, now=OVER)

        assert (early.reason, early.until) == (RefusalReason.LEASE_HELD, OVER)
        assert (in_time.row.state, in_time.row.lease) == (TaskState.PENDING, None)

    def test_a_silent_worker_costs_an_attempt_and_no_pause(self) -> None:
        change = change_of(running(), LEASE_ENDED, now=OVER)

        assert (change.row.attempts_used, change.row.due_at) == (1, OVER)
        assert change.row.failure == Failure(
            category=ErrorCategory.CRASH, message="worker 'worker-1' stopped: its lease ran out"
        )
        assert change.row.ran_for == LASTS + MARGIN
        assert change.row.usage == BEFORE
        assert [event.type for event in change.events] == ["Task Processing Failed"]
        assert change.events[0].context == EventContext(origin="sweeper")

    def test_what_a_silent_worker_had_paid_for_by_its_last_word_is_counted(self) -> None:
        paid = e.Usage(turns=2, cost_usd=0.5)
        row = replace(running(), lease=replace(a_lease(fence=3), usage=paid))

        again = change_of(row, LEASE_ENDED, now=OVER)
        unwanted = change_of(replace(row, cancel=a_cancel_request()), LEASE_ENDED, now=OVER)

        for change in (again, unwanted):
            assert change.row.usage == BEFORE + paid
            (event,) = change.events
            assert isinstance(event.body, e.TaskProcessingFailed | e.TaskCancelled)
            assert event.body.usage == paid

    def test_a_local_worker_whose_process_is_gone_is_not_waited_for(self) -> None:
        command = c.LeaseEnded(fence=3, margin=MARGIN, holder_dead=True)

        row = change_of(running(), command, now=NOON + SECOND).row

        assert row.state is TaskState.PENDING
        assert row.failure is not None
        assert row.failure.message == "worker 'worker-1' stopped: its process is gone"

    def test_an_attempt_that_had_not_begun_is_not_used_up(self) -> None:
        command = c.LeaseEnded(fence=3, margin=MARGIN, begun=False)

        change = change_of(running(attempts_used=2), command, now=OVER)

        row = change.row
        assert (row.state, row.lease, row.due_at) == (TaskState.PENDING, None, OVER)
        assert (row.attempt, row.attempts_used, row.failure) == (3, 2, None)
        (event,) = change.events
        assert isinstance(event.body, e.TaskReleased)
        assert event.body.reason == "worker 'worker-1' stopped: its lease ran out"
        assert event.context == EventContext(origin="sweeper")

    def test_a_cancelled_task_that_had_not_begun_is_cancelled(self) -> None:
        command = c.LeaseEnded(fence=3, margin=MARGIN, begun=False)

        assert change_of(running(cancel=True), command, now=OVER).row.state is TaskState.CANCELLED

    def test_a_dead_process_counts_only_for_local_workers(self) -> None:
        lease = a_lease(fence=3, local=False)
        row = a_task(state=TaskState.PROCESSING, attempt=3, lease=lease)
        command = c.LeaseEnded(fence=3, margin=MARGIN, holder_dead=True)

        assert refusal_of(row, command, now=NOON + SECOND).reason is RefusalReason.LEASE_HELD

    def test_no_attempt_has_a_negative_duration(self) -> None:
        command = c.LeaseEnded(fence=3, margin=MARGIN, holder_dead=True)

        assert change_of(running(), command, now=NOON - SECOND).row.ran_for == timedelta()

    def test_the_last_attempt_that_falls_silent_fails_the_task_by_the_sweepers_word(self) -> None:
        change = change_of(running(attempts_used=2), LEASE_ENDED, now=OVER)

        (event,) = change.events
        assert change.row.state is TaskState.FAILED
        assert isinstance(event.body, e.TaskFailed)
        assert (event.body.source, event.body.retry_count) == ("sweeper", 3)
        assert (event.body.error_category, event.body.usage) == ("crash", None)

    def test_a_silent_worker_that_was_to_cancel_has_cancelled(self) -> None:
        change = change_of(running(cancel=True), LEASE_ENDED, now=OVER)

        (event,) = change.events
        assert (change.row.state, change.row.usage) == (TaskState.CANCELLED, BEFORE)
        assert isinstance(event.body, e.TaskCancelled)
        assert (event.body.by, event.body.attempt_number) == ("ann", 3)


class TestFailTask:
    COMMAND = c.FailTask(
        failure=a_failure(ErrorCategory.CRASH, exit_code=9), source="dlq", margin=MARGIN
    )

    def test_a_task_without_a_lease_can_be_failed(self) -> None:
        row = a_task(attempt=2, attempts_used=2, last_output=4)

        change = change_of(row, self.COMMAND)

        assert (change.row.state, change.row.finished_at) == (TaskState.FAILED, LATER)
        assert (change.row.due_at, change.row.enqueued_at) == (None, None)
        assert (change.row.failure, change.row.exit_code) == (self.COMMAND.failure, 9)
        assert [event.body for event in change.events] == [
            e.TaskFailed(
                task_id=row.id,
                job_id=row.spec.job_id,
                error="broke by crash",
                error_category="crash",
                retry_count=2,
                source="dlq",
                attempt_number=2,
                exit_code=9,
            )
        ]
        assert change.events[0].context == EventContext(origin="sweeper")

    def test_what_its_last_worker_had_paid_for_is_counted(self) -> None:
        paid = e.Usage(turns=2, cost_usd=0.5)
        row = replace(running(), lease=replace(a_lease(fence=3), usage=paid))

        failed = change_of(row, self.COMMAND, now=OVER)
        unwanted = change_of(replace(row, cancel=a_cancel_request()), self.COMMAND, now=OVER)

        for change in (failed, unwanted):
            assert change.row.usage == BEFORE + paid
            (event,) = change.events
            assert isinstance(event.body, e.TaskFailed | e.TaskCancelled)
            assert event.body.usage == paid

    def test_a_task_that_never_ran_fails_without_an_attempt(self) -> None:
        (event,) = change_of(a_task(), self.COMMAND).events

        assert isinstance(event.body, e.TaskFailed)
        assert event.body.attempt_number is None

    def test_a_task_in_a_living_workers_hands_is_left_alone(self) -> None:
        refusal = refusal_of(running(), self.COMMAND, now=OVER - timedelta(microseconds=1))

        assert (refusal.reason, refusal.until) == (RefusalReason.LEASE_HELD, OVER)

    def test_a_task_in_a_dead_workers_hands_fails(self) -> None:
        row = change_of(running(), self.COMMAND, now=OVER).row

        assert (row.state, row.lease) == (TaskState.FAILED, None)

    def test_a_task_in_a_dead_workers_hands_that_was_to_be_cancelled_is_cancelled(self) -> None:
        row = change_of(running(cancel=True), self.COMMAND, now=OVER).row

        assert (row.state, row.failure) == (TaskState.CANCELLED, None)

    @pytest.mark.parametrize(
        ("state", "reason"),
        [
            (TaskState.WAITING, RefusalReason.WRONG_STATE),
            (TaskState.IN_REVIEW, RefusalReason.WRONG_STATE),
            (TaskState.COMPLETED, RefusalReason.ENDED),
            (TaskState.FAILED, RefusalReason.ENDED),
            (TaskState.CANCELLED, RefusalReason.ENDED),
        ],
    )
    def test_a_task_that_is_not_to_be_run_is_left_alone(
        self, state: TaskState, reason: RefusalReason
    ) -> None:
        assert refusal_of(a_task(state=state), self.COMMAND).reason is reason
