"""Every way in which a task can wait has its sentence, its moments and its remedy."""

from datetime import timedelta

import pytest

from longshore.core.budgets import Scope
from longshore.core.failures import ErrorCategory
from longshore.core.limits import MAX_REVISIONS
from longshore.core.reasons import Code, Reason
from longshore.core.states import TaskState
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
from tests.unit.core.pictures import LATER, RESUME, A, Pause, one_of, reasons_of


class TestPending:
    def test_a_task_that_is_due_waits_for_a_free_worker(self) -> None:
        reason = one_of(a_task())

        assert reason.code is Code.DUE
        assert reason.text == (
            "Task 'a' is due and waits in queue 'default' for a free worker; "
            "1 worker of this machine serves it."
        )
        assert (reason.task_id, reason.since, reason.until) == (A, NOON, None)

    def test_several_workers_are_counted(self) -> None:
        present = {"w1": ["default"], "w2": ["slow", "default"], "w3": ["slow"]}

        assert one_of(a_task(), present=present).text.endswith(
            "2 workers of this machine serve it."
        )

    def test_without_any_worker_that_is_the_root_of_it(self) -> None:
        due, nobody = reasons_of(a_task(spec=a_spec(queue="slow")), present={})

        assert due.text.endswith("waits in queue 'slow' for a free worker.")
        assert nobody == Reason(
            code=Code.NO_WORKER,
            text="No worker of this machine serves queue 'slow'.",
            remedy_command="longshore worker --queue slow",
        )

    def test_workers_of_other_queues_do_not_help_and_are_named(self) -> None:
        present = {"w1": ["fast", "default"], "w2": ["fast"]}

        due, nobody = reasons_of(a_task(spec=a_spec(queue="slow")), present=present)

        assert due.text.endswith("waits in queue 'slow' for a free worker.")
        assert nobody == Reason(
            code=Code.NO_WORKER,
            text=(
                "No worker of this machine serves queue 'slow'; "
                "2 workers are here for 'default', 'fast'."
            ),
            remedy_command="longshore worker --queue slow",
        )

    def test_one_worker_of_another_queue_is_spoken_of_as_one(self) -> None:
        _, nobody = reasons_of(a_task(), present={"w1": ["fast"]})

        assert nobody.text.endswith("; 1 worker is here for 'fast'.")

    def test_a_task_for_later_says_when(self) -> None:
        due_at = NOON + timedelta(hours=1)

        reason = one_of(a_task(due_at=due_at))

        assert reason.code is Code.DELAYED
        assert reason.text == "Task 'a' is not to begin before 2026-01-01 13:00:00 UTC."
        assert (reason.since, reason.until) == (NOON, due_at)

    def test_a_task_that_is_tried_again_says_why_when_and_how_often(self) -> None:
        due_at = LATER + SECOND
        row = a_task(attempt=1, attempts_used=1, failure=a_failure(), due_at=due_at)

        reason = one_of(row)

        assert reason.code is Code.BACKING_OFF
        assert reason.text == (
            "Task 'a' failed (network: broke by network) and is tried again at "
            "2026-01-01 12:00:11 UTC; it has used 1 of its 3 attempts."
        )
        assert (reason.since, reason.until) == (NOON, due_at)

    def test_a_task_that_is_due_at_this_moment_is_due(self) -> None:
        assert one_of(a_task(due_at=LATER)).code is Code.DUE

    def test_a_paused_queue_says_who_paused_it_and_why(self) -> None:
        due, paused = reasons_of(a_task(), paused=[Pause(reason="disk is full")])

        assert due.code is Code.DUE
        assert paused == Reason(
            code=Code.QUEUE_PAUSED,
            text="Queue 'default' is paused by olga (disk is full).",
            since=NOON,
            remedy_command="longshore queues resume default",
        )

    def test_a_pause_without_a_reason_and_of_another_queue(self) -> None:
        _, paused = reasons_of(a_task(), paused=[Pause()])

        assert paused.text == "Queue 'default' is paused by olga."
        assert one_of(a_task(), paused=[Pause(name="other")]).code is Code.DUE

    def test_a_queue_is_paused_and_nobody_is_there(self) -> None:
        reasons = reasons_of(a_task(), paused=[Pause()], present={})

        assert [one.code for one in reasons] == [Code.DUE, Code.QUEUE_PAUSED, Code.NO_WORKER]

    def test_a_held_queue_says_until_when_and_why(self) -> None:
        hold = Pause(by="worker-1", reason="rate limit", until=LATER + SECOND)

        _, paused, held = reasons_of(a_task(), paused=[Pause(), hold])

        assert paused.code is Code.QUEUE_PAUSED
        assert held == Reason(
            code=Code.QUEUE_HELD,
            text="Queue 'default' is held until 2026-01-01 12:00:11 UTC (rate limit).",
            since=NOON,
            until=LATER + SECOND,
            remedy_command="longshore queues resume default",
        )


class TestProcessing:
    def test_a_task_that_runs_says_who_runs_it_and_when_that_was_last_heard(self) -> None:
        row = a_task(state=TaskState.PROCESSING, attempts_used=1)

        reason = one_of(row)

        assert reason.code is Code.RUNNING
        assert reason.text == (
            "Worker 'worker-1' runs task 'a', attempt 2 of 3; its last sign of life was 10 s ago."
        )
        assert (reason.since, reason.until, reason.task_id) == (NOON, None, A)

    @pytest.mark.parametrize(
        ("age", "said"),
        [
            (timedelta(seconds=-5), "0 s"),
            (timedelta(seconds=119), "119 s"),
            (timedelta(minutes=2), "2 min"),
            (timedelta(hours=5), "5 h"),
            (timedelta(days=3, hours=1), "3 d"),
        ],
    )
    def test_the_age_of_the_last_sign_is_said_as_people_say_it(
        self, age: timedelta, said: str
    ) -> None:
        row = a_task(state=TaskState.PROCESSING, last_event_at=LATER - age)

        assert f"was {said} ago" in reasons_of(row)[0].text

    def test_before_any_event_the_claim_counts(self) -> None:
        row = a_task(state=TaskState.PROCESSING, last_event_at=None)

        assert "was 10 s ago" in one_of(row).text

    def test_a_silent_worker_loses_its_task_at_a_moment_that_is_told(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        _, silent = reasons_of(row, now=NOON + 31 * SECOND)

        assert silent.code is Code.WORKER_SILENT
        assert silent.text == (
            "Worker 'worker-1' is silent; unless it is heard again, its task is taken over "
            "at 2026-01-01 12:00:47 UTC."
        )
        assert (silent.since, silent.until) == (NOON, NOON + LASTS + MARGIN)

    def test_a_renewal_that_is_a_little_late_is_no_silence(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        assert one_of(row, now=NOON + 30 * SECOND).code is Code.RUNNING

    def test_when_the_moment_has_passed_somebody_has_only_to_look(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        reasons = reasons_of(row, now=NOON + LASTS + MARGIN, present={})

        assert reasons[1].text.endswith("taken over as soon as another worker looks.")
        assert [one.code for one in reasons][1:] == [Code.WORKER_SILENT, Code.NO_WORKER]

    def test_a_worker_whose_process_is_gone_is_told_as_gone(self) -> None:
        row = a_task(state=TaskState.PROCESSING)

        _, gone = reasons_of(row, gone=["worker-1"])

        assert gone.code is Code.WORKER_GONE
        assert gone.text == (
            "The process of worker 'worker-1' is gone; "
            "its task is taken over as soon as another worker looks."
        )
        assert gone.since == NOON

    def test_a_worker_elsewhere_may_have_the_name_of_one_that_is_gone_here(self) -> None:
        row = a_task(state=TaskState.PROCESSING, lease=a_lease(local=False))

        assert one_of(row, gone=["worker-1"]).code is Code.RUNNING

    def test_a_cancellation_that_is_under_way_is_told(self) -> None:
        row = a_task(state=TaskState.PROCESSING, cancel=a_cancel_request())

        running, cancelling = reasons_of(row)

        assert running.code is Code.RUNNING
        assert cancelling.code is Code.CANCELLING
        assert cancelling.text == (
            "ann has asked for the end of task 'a' (not needed); it is over when worker "
            "'worker-1' has ended it, or is no longer heard of."
        )
        assert cancelling.since == NOON


class TestAfterTheRun:
    def test_a_result_in_review_says_how_to_decide(self) -> None:
        reason = one_of(a_task(state=TaskState.IN_REVIEW))

        assert reason.code is Code.IN_REVIEW
        assert reason.text == (
            "Task 'a' has a result that waits for somebody to review it; "
            f"`longshore revise {A}` has it done again."
        )
        assert (reason.since, reason.remedy_command) == (NOON, f"longshore approve {A}")

    def test_a_result_that_was_revised_to_the_limit_can_only_be_approved_or_cancelled(self) -> None:
        reason = one_of(a_task(state=TaskState.IN_REVIEW, revision=MAX_REVISIONS))

        assert reason.text.endswith("revised 5 times, so it can be approved or cancelled only.")

    @pytest.mark.parametrize(
        ("scope", "to"),
        [(Scope.STEP, A), (Scope.TASK, A), (Scope.JOB, JOB_ID), (Scope.DAY, "today")],
    )
    def test_a_parked_task_says_which_budget_it_lacks_and_how_to_add_to_it(
        self, scope: Scope, to: str
    ) -> None:
        reason = one_of(a_task(state=TaskState.PARKED, parked=a_parking(scope)))

        assert (reason.code, reason.since, reason.until) == (Code.PARKED, NOON, None)
        assert reason.text == (
            "Task 'a' is parked: all is spent. It goes on where it was as soon as more is allowed."
        )
        assert reason.remedy_command == f"longshore budget add {to} --usd 5"

    def test_a_task_parked_for_the_day_says_when_it_goes_on_by_itself(self) -> None:
        midnight = NOON + timedelta(hours=12)
        row = a_task(state=TaskState.PARKED, parked=a_parking(Scope.DAY), due_at=midnight)

        reason = one_of(row)

        assert reason.until == midnight
        assert reason.text.endswith("allowed, and by itself at 2026-01-02 00:00:00 UTC.")

    def test_a_parked_task_whose_row_says_no_more_is_told_of_all_the_same(self) -> None:
        reason = one_of(a_task(state=TaskState.PARKED, parked=None))

        assert "is parked: a budget is used up." in reason.text
        assert (reason.since, reason.remedy_command) == (None, f"longshore budget add {A} --usd 5")

    def test_a_failed_task_says_why_and_what_runs_it_again(self) -> None:
        failure = a_failure(ErrorCategory.VALIDATION)

        reason = one_of(a_task(state=TaskState.FAILED, failure=failure))

        assert reason.code is Code.FAILED
        assert reason.text == (
            "Task 'a' failed (validation: broke by validation); it has used 1 of its 3 attempts."
        )
        assert (reason.since, reason.remedy_command) == (NOON, RESUME)

    def test_a_failure_that_nobody_described_is_a_failure_all_the_same(self) -> None:
        row = a_task(state=TaskState.FAILED, failure=None, attempts_used=0)

        assert one_of(row).text == "Task 'a' failed; it has used 0 of its 3 attempts."

    def test_a_cancelled_task_says_by_whom(self) -> None:
        reason = one_of(a_task(state=TaskState.CANCELLED))

        assert reason.code is Code.CANCELLED
        assert reason.text == "ann cancelled task 'a' (not needed)."
        assert (reason.since, reason.remedy_command) == (NOON, RESUME)

    def test_a_cancelled_task_of_which_nobody_knows_who_cancelled_it(self) -> None:
        reason = one_of(a_task(state=TaskState.CANCELLED, cancel=None))

        assert reason.text == "Somebody cancelled task 'a'."

    def test_a_completed_task_is_over(self) -> None:
        reason = one_of(a_task(state=TaskState.COMPLETED))

        assert reason.code is Code.COMPLETED
        assert reason.text == "Task 'a' has completed; only a new job would run it again."
        assert (reason.since, reason.remedy_command) == (NOON, None)
