"""Every way in which a task can wait has its sentence, its moments and its remedy."""

from datetime import timedelta

import pytest

from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.explain import ReasonCode, Remedy, RemedyAction, WhyReason
from longshore.core.maximums import MAX_REVISIONS
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from tests.factories import (
    JOB_ID,
    LASTS,
    MARGIN,
    NOON,
    SECOND,
    a_cancel_request,
    a_failure,
    a_lease,
    a_parking,
    a_spec,
    a_task,
)
from tests.unit.core.why_snapshots import LATER, RESUME, A, Pause, reasons_of, single_reason


class TestPending:
    def test_a_task_that_is_due_waits_for_a_free_worker(self) -> None:
        reason = single_reason(a_task())

        assert reason.code is ReasonCode.DUE
        assert reason.text == (
            "Task 'a' is due and waits in queue 'default' for a free worker; "
            "1 worker on this machine serves it."
        )
        assert (reason.task_id, reason.since, reason.until) == (A, NOON, None)

    def test_several_workers_are_counted(self) -> None:
        present = {"w1": ["default"], "w2": ["slow", "default"], "w3": ["slow"]}

        assert single_reason(a_task(), live_workers=present).text.endswith(
            "2 workers on this machine serve it."
        )

    def test_without_any_worker_that_is_the_root_of_it(self) -> None:
        due, no_worker = reasons_of(a_task(spec=a_spec(queue="slow")), live_workers={})

        assert due.text.endswith("waits in queue 'slow' for a free worker.")
        assert no_worker == WhyReason(
            code=ReasonCode.NO_WORKER,
            text="No worker on this machine serves queue 'slow'.",
            remedy=Remedy(RemedyAction.START_WORKER, "slow"),
        )

    def test_workers_of_other_queues_do_not_help_and_are_named(self) -> None:
        present = {"w1": ["fast", "default"], "w2": ["fast"]}

        due, no_worker = reasons_of(a_task(spec=a_spec(queue="slow")), live_workers=present)

        assert due.text.endswith("waits in queue 'slow' for a free worker.")
        assert no_worker == WhyReason(
            code=ReasonCode.NO_WORKER,
            text=(
                "No worker on this machine serves queue 'slow'; 2 workers serve 'default', 'fast'."
            ),
            remedy=Remedy(RemedyAction.START_WORKER, "slow"),
        )

    def test_one_worker_of_another_queue_is_spoken_of_as_one(self) -> None:
        _, no_worker = reasons_of(a_task(), live_workers={"w1": ["fast"]})

        assert no_worker.text.endswith("; 1 worker serves 'fast'.")

    def test_a_task_for_later_says_when(self) -> None:
        due_at = NOON + timedelta(hours=1)

        reason = single_reason(a_task(due_at=due_at))

        assert reason.code is ReasonCode.DELAYED
        assert reason.text == "Task 'a' is scheduled for 2026-01-01 13:00:00 UTC."
        assert (reason.since, reason.until) == (NOON, due_at)

    def test_a_task_that_is_tried_again_says_why_when_and_how_often(self) -> None:
        due_at = LATER + SECOND
        row = a_task(attempt=1, attempts_used=1, failure=a_failure(), due_at=due_at)

        reason = single_reason(row)

        assert reason.code is ReasonCode.BACKING_OFF
        assert reason.text == (
            "Task 'a' failed (network: broke by network) and is retried at "
            "2026-01-01 12:00:11 UTC; it has used 1 of its 3 attempts."
        )
        assert (reason.since, reason.until) == (NOON, due_at)

    def test_a_task_that_is_due_at_this_moment_is_due(self) -> None:
        assert single_reason(a_task(due_at=LATER)).code is ReasonCode.DUE

    def test_a_paused_queue_says_who_paused_it_and_why(self) -> None:
        due, paused = reasons_of(a_task(), pauses=[Pause(reason="disk is full")])

        assert due.code is ReasonCode.DUE
        assert paused == WhyReason(
            code=ReasonCode.QUEUE_PAUSED,
            text="Queue 'default' is paused by olga (disk is full).",
            since=NOON,
            remedy=Remedy(RemedyAction.RESUME_QUEUE, "default"),
        )

    def test_a_pause_without_a_reason_and_of_another_queue(self) -> None:
        _, paused = reasons_of(a_task(), pauses=[Pause()])

        assert paused.text == "Queue 'default' is paused by olga."
        assert single_reason(a_task(), pauses=[Pause(name="other")]).code is ReasonCode.DUE

    def test_a_paused_queue_without_workers_has_both_reasons(self) -> None:
        reasons = reasons_of(a_task(), pauses=[Pause()], live_workers={})

        assert [reason.code for reason in reasons] == [
            ReasonCode.DUE,
            ReasonCode.QUEUE_PAUSED,
            ReasonCode.NO_WORKER,
        ]

    def test_a_held_queue_says_until_when_and_why(self) -> None:
        hold = Pause(by="worker-1", reason="rate limit", until=LATER + SECOND)

        _, paused, holds = reasons_of(a_task(), pauses=[Pause(), hold])

        assert paused.code is ReasonCode.QUEUE_PAUSED
        assert holds == WhyReason(
            code=ReasonCode.QUEUE_HELD,
            text="Queue 'default' is held until 2026-01-01 12:00:11 UTC (rate limit).",
            since=NOON,
            until=LATER + SECOND,
            remedy=Remedy(RemedyAction.RESUME_QUEUE, "default"),
        )


class TestProcessing:
    def test_a_running_task_names_its_worker_and_the_last_heartbeat(self) -> None:
        row = a_task(state=TaskState.PROCESSING, attempts_used=1)

        reason = single_reason(row)

        assert reason.code is ReasonCode.RUNNING
        assert reason.text == (
            "Worker 'worker-1' runs task 'a', attempt 2 of 3; its last heartbeat was 10 s ago."
        )
        assert (reason.since, reason.until, reason.task_id) == (NOON, None, A)

    @pytest.mark.parametrize(
        ("age", "text_of_age"),
        [
            (timedelta(seconds=-5), "0.0 s"),
            (timedelta(seconds=119), "1 min 59 s"),
            (timedelta(minutes=2), "2 min"),
            (timedelta(hours=5), "5 h"),
            (timedelta(days=3, hours=1), "3 d 1 h"),
        ],
    )
    def test_the_age_of_the_last_heartbeat_has_a_readable_unit(
        self, age: timedelta, text_of_age: str
    ) -> None:
        row = a_task(state=TaskState.PROCESSING, last_event_at=LATER - age)

        assert f"was {text_of_age} ago" in reasons_of(row)[0].text

    def test_before_any_event_the_claim_counts(self) -> None:
        row = a_task(state=TaskState.PROCESSING, last_event_at=None)

        assert "was 10 s ago" in single_reason(row).text

    def test_a_silent_worker_loses_its_task_at_a_time_that_is_shown(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        _, silent = reasons_of(row, now=NOON + 31 * SECOND)

        assert silent.code is ReasonCode.WORKER_SILENT
        assert silent.text == (
            "Worker 'worker-1' is silent; unless it sends a heartbeat, its task is taken over "
            "at 2026-01-01 12:00:47 UTC."
        )
        assert (silent.since, silent.until) == (NOON, NOON + LASTS + MARGIN)

    def test_a_renewal_that_is_a_little_late_is_no_silence(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        assert single_reason(row, now=NOON + 30 * SECOND).code is ReasonCode.RUNNING

    def test_after_that_time_the_task_is_taken_over_at_the_next_poll(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        reasons = reasons_of(row, now=NOON + LASTS + MARGIN, live_workers={})

        assert reasons[1].text.endswith("taken over as soon as another worker polls.")
        assert [reason.code for reason in reasons][1:] == [
            ReasonCode.WORKER_SILENT,
            ReasonCode.NO_WORKER,
        ]

    def test_a_worker_whose_process_has_ended_is_a_reason(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        _, gone = reasons_of(row, dead_workers=["worker-1"])

        assert gone.code is ReasonCode.WORKER_GONE
        assert gone.text == (
            "The process of worker 'worker-1' has ended; "
            "its task is taken over as soon as another worker polls."
        )
        assert gone.since == NOON

    def test_a_worker_elsewhere_may_have_the_name_of_one_that_is_gone_here(self) -> None:
        row = a_task(state=TaskState.PROCESSING, lease=a_lease(local=False))

        assert single_reason(row, dead_workers=["worker-1"]).code is ReasonCode.RUNNING

    def test_a_cancellation_in_progress_is_a_reason(self) -> None:
        row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request())

        running, cancelling = reasons_of(row)

        assert running.code is ReasonCode.RUNNING
        assert cancelling.code is ReasonCode.CANCELLING
        assert cancelling.text == (
            "ann has requested cancellation of task 'a' (not needed); it ends when worker "
            "'worker-1' has stopped it, or when the worker's lease expires."
        )
        assert cancelling.since == NOON


class TestAfterTheRun:
    def test_a_result_in_review_says_how_to_decide(self) -> None:
        reason = single_reason(a_task(state=TaskState.IN_REVIEW))

        assert reason.code is ReasonCode.IN_REVIEW
        assert reason.text == (
            "Task 'a' has a result that waits for review; it can be approved, revised or cancelled."
        )
        assert (reason.since, reason.remedy) == (
            NOON,
            Remedy(RemedyAction.APPROVE_TASK, A),
        )

    def test_a_result_that_was_revised_to_the_limit_can_only_be_approved_or_cancelled(self) -> None:
        reason = single_reason(a_task(state=TaskState.IN_REVIEW, revision=MAX_REVISIONS))

        assert reason.text.endswith("revised 5 times and can only be approved or cancelled.")

    @pytest.mark.parametrize(
        ("scope", "to"),
        [
            (BudgetScope.STEP, A),
            (BudgetScope.TASK, A),
            (BudgetScope.JOB, JOB_ID),
            (BudgetScope.DAY, None),
        ],
    )
    def test_a_parked_task_says_which_budget_it_lacks_and_how_to_add_to_it(
        self, scope: BudgetScope, to: str
    ) -> None:
        reason = single_reason(a_task(state=TaskState.PARKED, parked=a_parking(scope)))

        assert (reason.code, reason.since, reason.until) == (ReasonCode.PARKED, NOON, None)
        assert reason.text == (
            "Task 'a' is parked: all is spent. It resumes when the budget is raised."
        )
        assert reason.remedy == Remedy(RemedyAction.ADD_BUDGET, to, BudgetUnit.USD)

    def test_the_reason_of_a_task_parked_for_the_day_has_the_time_of_its_resume(self) -> None:
        midnight = NOON + timedelta(hours=12)
        row = a_task(state=TaskState.PARKED, parked=a_parking(BudgetScope.DAY), due_at=midnight)

        reason = single_reason(row)

        assert reason.until == midnight
        assert reason.text.endswith("raised, or by itself at 2026-01-02 00:00:00 UTC.")

    def test_a_failed_task_says_why_and_what_runs_it_again(self) -> None:
        failure = a_failure(ErrorCategory.VALIDATION)

        reason = single_reason(a_task(state=TaskState.FAILED, failure=failure))

        assert reason.code is ReasonCode.FAILED
        assert reason.text == (
            "Task 'a' failed (validation: broke by validation); it has used 1 of its 3 attempts"
            " and is not retried after such an error."
        )
        assert (reason.since, reason.remedy) == (NOON, RESUME)

    @pytest.mark.parametrize(
        ("category", "hints"),
        [
            (ErrorCategory.TIMEOUT, ("`timeout`", "worker.task_timeout", "`retryOnTimeout`")),
            (ErrorCategory.UNKNOWN, ("it is not known", "`longshore.errors.Retry`")),
        ],
    )
    def test_a_failed_task_says_what_would_have_it_retried(
        self, category: ErrorCategory, hints: tuple[str, ...]
    ) -> None:
        reason = single_reason(a_task(state=TaskState.FAILED, failure=a_failure(category)))

        assert [hint for hint in hints if hint not in reason.text] == []

    def test_a_failed_task_with_an_exit_code_says_how_to_retry_it(self) -> None:
        failure = a_failure(ErrorCategory.EXIT_CODE)

        left = single_reason(a_task(state=TaskState.FAILED, failure=failure))
        last = single_reason(a_task(state=TaskState.FAILED, failure=failure, attempts_used=3))

        assert left.text.endswith("to retry it, list the exit code in `retryableExitCodes`.")
        assert last.text.endswith("; it has used 3 of its 3 attempts.")

    def test_a_failed_task_without_a_failure_has_a_reason(self) -> None:
        row = a_task(state=TaskState.FAILED, failure=None, attempts_used=0)

        assert single_reason(row).text == "Task 'a' failed; it has used 0 of its 3 attempts."

    def test_a_cancelled_task_says_by_whom(self) -> None:
        reason = single_reason(a_task(state=TaskState.CANCELLED))

        assert reason.code is ReasonCode.CANCELLED
        assert reason.text == "ann cancelled task 'a' (not needed)."
        assert (reason.since, reason.remedy) == (NOON, RESUME)

    def test_a_cancelled_task_without_a_request_has_a_reason(self) -> None:
        reason = single_reason(a_task(state=TaskState.CANCELLED, cancel=None))

        assert reason.text == "An operator cancelled task 'a'."

    def test_a_completed_task_is_over(self) -> None:
        reason = single_reason(a_task(state=TaskState.COMPLETED))

        assert reason.code is ReasonCode.COMPLETED
        assert reason.text == "Task 'a' has completed; only a new job can run it again."
        assert (reason.since, reason.remedy) == (NOON, None)
