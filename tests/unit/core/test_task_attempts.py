"""What comes of an attempt by its worker's word: a result, another try, a failure, a timeout."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.changes import Enqueue
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.states import Priority, TaskState
from tests.factories import SECOND, a_document, a_failure, a_spec, a_task
from tests.unit.core.attempt_commands import LATER, OVER, change_of, running

RESULT = a_document('{"pages":3}')
SPENT = e.Usage(turns=2, cost_usd=0.25)
BOTH = e.Usage(turns=3, cost_usd=0.75)


def failing(
    category: ErrorCategory = ErrorCategory.NETWORK, *, roll: float = 0.5, **failure: Any
) -> c.AttemptFailed:
    return c.AttemptFailed(
        fence=3,
        failure=a_failure(category, **failure),
        jitter=roll,
        duration=4 * SECOND,
        usage=SPENT,
        last_output=8,
    )


COMPLETE = c.Complete(
    fence=3, result=RESULT, duration=4 * SECOND, exit_code=0, usage=SPENT, last_output=8
)
TIME_OUT = c.TimeOut(
    fence=3,
    timeout=2.5 * SECOND,
    elapsed=4 * SECOND,
    signal="SIGKILL",
    jitter=0.5,
    usage=SPENT,
    last_output=8,
)


class TestComplete:
    def test_a_result_ends_the_task(self) -> None:
        row = change_of(running(), COMPLETE).row

        assert (row.state, row.lease, row.finished_at) == (TaskState.COMPLETED, None, LATER)
        assert (row.result, row.exit_code, row.ran_for) == (RESULT, 0, 4 * SECOND)
        assert (row.last_output, row.usage, row.attempts_used) == (8, BOTH, 0)

    def test_the_event_of_an_end_has_the_usage_of_this_attempt(self) -> None:
        row = running()

        change = change_of(row, COMPLETE)

        assert [event.body for event in change.events] == [
            e.TaskCompleted(
                task_id=row.id,
                job_id=row.spec.job_id,
                attempt_number=3,
                output=RESULT,
                duration=4 * SECOND,
                exit_code=0,
                last_output=8,
                usage=SPENT,
            )
        ]
        assert change.events[0].context == EventContext(origin="worker", worker_id="worker-1")
        assert change.durable

    def test_a_result_is_accepted_after_the_lease_ran_out(self) -> None:
        assert change_of(running(), COMPLETE, now=OVER).row.state is TaskState.COMPLETED

    def test_a_result_wipes_out_the_failure_of_an_earlier_attempt(self) -> None:
        row = a_task(state=TaskState.PROCESSING, attempt=3, failure=a_failure())

        assert change_of(row, COMPLETE).row.failure is None

    def test_a_result_before_the_cancellation_took_effect_is_accepted(self) -> None:
        row = change_of(running(cancel=True), COMPLETE).row

        assert (row.state, row.cancel, row.result) == (TaskState.COMPLETED, None, RESULT)

    def test_work_that_requires_review_waits_for_it(self) -> None:
        row = running(requires_review=True)

        change = change_of(row, COMPLETE)

        assert (change.row.state, change.row.lease) == (TaskState.IN_REVIEW, None)
        assert (change.row.result, change.row.usage) == (RESULT, BOTH)
        assert change.row.finished_at is None
        assert [event.body for event in change.events] == [
            e.TaskSubmittedForReview(
                task_id=row.id,
                job_id=row.spec.job_id,
                attempt_number=3,
                output=RESULT,
                duration=4 * SECOND,
                last_output=8,
                usage=SPENT,
            )
        ]

    def test_a_cancelled_result_is_not_submitted_for_review(self) -> None:
        row = change_of(running(cancel=True, requires_review=True), COMPLETE).row

        assert (row.state, row.finished_at) == (TaskState.CANCELLED, LATER)
        assert (row.usage, row.last_output) == (BOTH, 8)


class TestAttemptFailed:
    def test_a_retryable_failure_with_attempts_left_makes_the_task_pending_after_a_pause(
        self,
    ) -> None:
        row = running(attempts_used=1, retry=RetryPolicy(max_attempts=3, base=4 * SECOND))

        change = change_of(row, failing(roll=0.5))

        due_at = LATER + 4 * SECOND  # half of a window that has doubled once
        assert (change.row.state, change.row.lease) == (TaskState.PENDING, None)
        assert (change.row.due_at, change.row.enqueued_at) == (due_at, LATER)
        assert (change.row.attempt, change.row.attempts_used) == (3, 2)
        assert change.row.finished_at is None
        assert change.effects == (Enqueue(row.id, "default", Priority.NORMAL, due_at),)

    def test_the_row_remembers_how_the_attempt_went(self) -> None:
        row = change_of(running(), failing(ErrorCategory.EXIT_CODE, exit_code=3, retry=True)).row

        assert row.failure is not None
        assert (row.failure.category, row.exit_code) == (ErrorCategory.EXIT_CODE, 3)
        assert (row.ran_for, row.last_output, row.usage) == (4 * SECOND, 8, BOTH)

    def test_a_retried_failure_has_the_time_of_the_next_attempt(self) -> None:
        row = running()
        command = failing(ErrorCategory.SERVER_ERROR, roll=0.0, exit_code=1)

        (event,) = change_of(row, command).events

        assert event.body == e.TaskProcessingFailed(
            task_id=row.id,
            job_id=row.spec.job_id,
            attempt_number=3,
            error="broke by server-error",
            error_category="server-error",
            due_at=LATER,
            duration=4 * SECOND,
            exit_code=1,
            last_output=8,
            usage=SPENT,
        )
        assert event.context == EventContext(origin="worker", worker_id="worker-1")

    def test_the_last_attempt_that_fails_ends_the_task(self) -> None:
        row = running(attempts_used=2)

        change = change_of(row, failing())

        assert (change.row.state, change.row.lease) == (TaskState.FAILED, None)
        assert (change.row.attempts_used, change.row.finished_at) == (3, LATER)
        assert change.row.due_at is None
        assert change.effects == ()
        assert [event.body for event in change.events] == [
            e.TaskFailed(
                task_id=row.id,
                job_id=row.spec.job_id,
                error="broke by network",
                error_category="network",
                retry_count=3,
                source="worker",
                attempt_number=3,
                duration=4 * SECOND,
                last_output=8,
                usage=SPENT,
            )
        ]

    def test_the_memory_peak_of_a_crash_is_in_the_row_and_the_event(self) -> None:
        crash = failing(ErrorCategory.CRASH, peak_rss_bytes=123_456_789)

        again = change_of(running(), crash)
        over = change_of(running(attempts_used=2), crash)

        for change in (again, over):
            assert change.row.failure is not None
            assert change.row.failure.peak_rss_bytes == 123_456_789
            assert change.events[0].body.peak_rss_bytes == 123_456_789
        assert [change.events[0].type for change in (again, over)] == [
            "Task Processing Failed",
            "Task Failed",
        ]

    def test_a_final_category_ends_the_task_at_its_first_attempt(self) -> None:
        row = change_of(running(), failing(ErrorCategory.AUTH)).row

        assert (row.state, row.attempts_used) == (TaskState.FAILED, 1)

    def test_a_task_that_decides_for_itself_is_believed(self) -> None:
        given_up = change_of(running(), failing(ErrorCategory.NETWORK, retry=False)).row
        tried_again = change_of(running(), failing(ErrorCategory.VALIDATION, retry=True)).row

        assert given_up.state is TaskState.FAILED
        assert tried_again.state is TaskState.PENDING

    def test_what_a_server_asked_to_wait_is_added_before_the_jitter(self) -> None:
        command = failing(ErrorCategory.SERVER_ERROR, roll=0.0, retry_after=timedelta(minutes=5))

        assert change_of(running(), command).row.due_at == LATER + timedelta(minutes=5)

    def test_a_task_is_due_at_a_whole_millisecond_and_can_be_claimed_then(
        self,
    ) -> None:
        row = change_of(running(), failing(roll=0.1234567)).row

        assert row.due_at == LATER + timedelta(milliseconds=123)

    def test_a_rate_limit_that_names_a_wait_uses_up_no_attempt(self) -> None:
        row = running(attempts_used=2)

        change = change_of(row, failing(ErrorCategory.RATE_LIMIT, retry_after=5 * SECOND))

        assert (change.row.state, change.row.attempts_used) == (TaskState.PENDING, 2)
        assert change.events[0].body.retry_after == 5 * SECOND

    def test_a_rate_limit_without_a_wait_uses_up_an_attempt(self) -> None:
        last = change_of(running(attempts_used=2), failing(ErrorCategory.RATE_LIMIT)).row
        other = change_of(running(), failing(ErrorCategory.RATE_LIMIT)).row

        assert (last.state, last.attempts_used) == (TaskState.FAILED, 3)
        assert (other.state, other.attempts_used) == (TaskState.PENDING, 1)

    def test_the_waits_for_rate_limits_are_limited_in_sum(self) -> None:
        policy = RetryPolicy(rate_limit_wait=timedelta(minutes=10))
        limited = failing(ErrorCategory.RATE_LIMIT, roll=0.0, retry_after=timedelta(minutes=4))
        row, states, waits = running(retry=policy), [], []

        for _ in range(3):
            row = change_of(row, limited).row
            states.append(row.state)
            waits.append(row.rate_limit_waits)
            row = replace(row, state=TaskState.PROCESSING, lease=running().lease)

        assert states == [TaskState.PENDING, TaskState.PENDING, TaskState.FAILED]
        assert waits[:2] == [timedelta(minutes=4), timedelta(minutes=8)]
        assert row.failure is not None
        assert row.failure.category is ErrorCategory.RATE_LIMIT
        assert row.failure.message.endswith(
            " (waited for rate limits for 8m already; at most 10m by `retry.rate_limit_wait`)"
        )

    def test_rate_limits_that_name_no_time_to_wait_are_limited_in_number(self) -> None:
        policy = RetryPolicy(rate_limit_wait=10 * SECOND)
        limited = failing(ErrorCategory.RATE_LIMIT, roll=0.0, retry_after=timedelta(0))
        row, attempts = running(retry=policy), 0

        while row.state is not TaskState.FAILED and attempts < 50:
            row = replace(row, state=TaskState.PROCESSING, lease=running().lease)
            row, attempts = change_of(row, limited).row, attempts + 1

        assert attempts == 11

    @pytest.mark.parametrize(
        ("state", "command"),
        [
            (TaskState.FAILED, c.Resume(round=2, by="ann")),
            (TaskState.IN_REVIEW, c.RequestRevision(feedback="shorter", by="ann")),
        ],
    )
    def test_a_new_round_or_revision_may_wait_again(
        self, state: TaskState, command: c.Command
    ) -> None:
        row = a_task(state=state, rate_limit_waits=timedelta(hours=23))

        assert change_of(row, command).row.rate_limit_waits == timedelta(0)

    def test_one_rate_limit_after_another_waits_longer_each_time(self) -> None:
        policy = RetryPolicy(base=SECOND, cap=timedelta(minutes=1))
        pauses = []
        for attempt in (1, 2, 3):
            row = a_task(state=TaskState.PROCESSING, attempt=attempt, spec=a_spec(retry=policy))
            failure = a_failure(ErrorCategory.RATE_LIMIT, retry_after=timedelta(0))
            command = c.AttemptFailed(fence=attempt, failure=failure, jitter=0.5, duration=SECOND)

            due_at = change_of(row, command).row.due_at

            assert due_at is not None
            pauses.append(due_at - LATER)

        assert pauses == [0.5 * SECOND, SECOND, 2 * SECOND]

    def test_a_failure_of_what_was_to_be_cancelled_is_a_cancellation(self) -> None:
        row = running(cancel=True)

        change = change_of(row, failing())

        assert (change.row.state, change.row.attempts_used) == (TaskState.CANCELLED, 0)
        assert (change.row.usage, change.row.last_output) == (BOTH, 8)
        assert [event.type for event in change.events] == ["Task Cancelled"]


class TestTimeOut:
    def test_a_timeout_ends_the_task_although_attempts_are_left(self) -> None:
        row = change_of(running(), TIME_OUT).row

        assert (row.state, row.lease, row.finished_at) == (TaskState.FAILED, None, LATER)
        assert (row.attempts_used, row.ran_for, row.last_output) == (1, 4 * SECOND, 8)
        assert row.usage == BOTH
        assert row.failure == Failure(
            category=ErrorCategory.TIMEOUT, message="timed out after 2.5 s", signal="SIGKILL"
        )

    def test_a_timeout_has_its_signal_and_its_real_duration(self) -> None:
        row = running()

        (event,) = change_of(row, TIME_OUT).events

        assert event.body == e.TaskTimeout(
            task_id=row.id,
            job_id=row.spec.job_id,
            attempt_number=3,
            timeout=2.5 * SECOND,
            elapsed=4 * SECOND,
            signal="SIGKILL",
            last_output=8,
            usage=SPENT,
        )

    def test_a_definition_may_ask_for_another_attempt_after_a_timeout(self) -> None:
        change = change_of(running(attempts_used=1, retry_on_timeout=True), TIME_OUT)

        assert (change.row.state, change.row.attempts_used) == (TaskState.PENDING, 2)
        assert [event.type for event in change.events] == ["Task Processing Failed"]
        assert len(change.effects) == 1

    def test_the_last_attempt_that_times_out_emits_a_timeout(self) -> None:
        change = change_of(running(attempts_used=2, retry_on_timeout=True), TIME_OUT)

        assert (change.row.state, change.row.attempts_used) == (TaskState.FAILED, 3)
        assert [event.type for event in change.events] == ["Task Timeout"]

    def test_a_timeout_of_what_was_to_be_cancelled_is_a_cancellation(self) -> None:
        row = change_of(running(cancel=True), TIME_OUT).row

        assert (row.state, row.usage, row.last_output) == (TaskState.CANCELLED, BOTH, 8)
