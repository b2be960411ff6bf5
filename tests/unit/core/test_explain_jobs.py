"""A waiting task is explained down to its root, and a job by the tasks that explain most."""

import pytest

from longshore.core.explain import (
    ChainLink,
    DependencyChain,
    ReasonCode,
    Remedy,
    RemedyAction,
    WhyReason,
    explain_job,
    explain_task,
)
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.rows import CancelRequest, IntentKind, TaskRow
from longshore.core.tasks.states import TaskState
from tests.factories import JOB_ID, NOON, a_cancel_request, a_job, a_task, an_intent
from tests.unit.core.why_snapshots import (
    LATER,
    RESUME,
    A,
    make_snapshot,
    reasons_of,
    row_of,
    single_reason,
)


class TestWaiting:
    CHAIN = DependencyChain(
        links=(
            ChainLink(number=2, parents=(1, 3), awaited_count=2),
            ChainLink(number=1, parents=(0,), awaited_count=1),
            ChainLink(number=0),
        )
    )

    def rows(self, root: TaskRow) -> tuple[TaskRow, ...]:
        return (
            row_of("c", TaskState.WAITING),
            row_of("b", TaskState.WAITING),
            row_of("d", TaskState.IN_REVIEW),
            root,
        )

    def test_the_chain_leads_to_the_running_task(self) -> None:
        reasons = explain_task(
            make_snapshot(*self.rows(row_of("a", TaskState.PROCESSING))), self.CHAIN
        )

        assert [(item.code, item.task_id) for item in reasons] == [
            (ReasonCode.WAITING, f"{JOB_ID}_c"),
            (ReasonCode.WAITING, f"{JOB_ID}_b"),
            (ReasonCode.RUNNING, A),
        ]
        assert reasons[0].text == "Task 'c' waits for 'b' (waiting), 'd' (in review)."
        assert reasons[1].text == "Task 'b' waits for 'a' (processing)."
        assert (reasons[0].since, reasons[0].remedy) == (NOON, None)

    @pytest.mark.parametrize(
        ("state", "became"),
        [(TaskState.FAILED, "failed"), (TaskState.CANCELLED, "was cancelled")],
    )
    def test_a_task_behind_a_failure_has_the_failure_and_the_remedy(
        self, state: TaskState, became: str
    ) -> None:
        root = row_of("a", state, finished_at=LATER)

        first, second, last = explain_task(make_snapshot(*self.rows(root)), self.CHAIN)

        assert (first.code, second.code) == (ReasonCode.BEHIND_FAILURE, ReasonCode.BEHIND_FAILURE)
        assert (
            second.text == f"Task 'b' waits for 'a' ({state}), and cannot run because 'a' {became}."
        )
        assert (first.since, first.remedy) == (LATER, RESUME)
        assert (last.code.value, last.task_id) == (state.value, A)

    def test_a_completed_parent_that_was_not_recorded_is_a_reason(self) -> None:
        reasons = explain_task(
            make_snapshot(*self.rows(row_of("a", TaskState.COMPLETED))), self.CHAIN
        )

        assert reasons[-1].code is ReasonCode.MOVING_ON
        assert reasons[-1].text == ("Task 'a' has completed; its dependents are being notified.")
        assert reasons[-1].since == NOON

    def test_a_waiting_task_without_awaited_parents_has_a_reason(self) -> None:
        reason = single_reason(a_task(state=TaskState.WAITING))

        assert reason.code is ReasonCode.MOVING_ON
        assert reason.text.startswith("All dependencies of task 'a' have completed")

    def test_tasks_that_are_being_created_have_that_reason(self) -> None:
        reasons = explain_task(make_snapshot(), self.CHAIN)

        assert reasons[0].text == ("Task 'c' waits for 'b' (being created), 'd' (being created).")
        assert reasons[0].since is None
        assert reasons[-1] == WhyReason(
            code=ReasonCode.BEING_CREATED, text="Task 'a' is still being created.", task_id=A
        )

    def test_many_parents_and_a_long_chain_are_counted(self) -> None:
        chain = DependencyChain(
            links=(ChainLink(number=1, parents=(0,), awaited_count=1_501), ChainLink(number=0)),
            omitted=1,
        )

        first, between, _ = explain_task(make_snapshot(a_task()), chain)

        assert first.text == "Task 'b' waits for 'a' (pending), 1,500 more tasks."
        assert between == WhyReason(
            code=ReasonCode.LEFT_OUT, text="1 more task in between, each waiting for the next."
        )

    def test_a_job_that_is_being_cancelled_ends_all_of_its_tasks(self) -> None:
        job = a_job(5, cancel=a_cancel_request())

        *_, last = reasons_of(a_task(), job=job)

        assert last == WhyReason(
            code=ReasonCode.CANCELLING,
            text="ann has requested cancellation of the whole job (not needed).",
            since=NOON,
        )
        assert (
            single_reason(a_task(state=TaskState.COMPLETED), job=job).code is ReasonCode.COMPLETED
        )


class TestJobs:
    def test_a_running_job_has_its_progress_and_reasons_of_tasks(self) -> None:
        job = a_job(4, completed=[2], failed=[1], blocked=[3])
        picture = make_snapshot(
            row_of("b", TaskState.FAILED), row_of("a", TaskState.PROCESSING), job=job
        )

        reasons = explain_job(picture, [1, 0])

        assert [item.code for item in reasons] == [
            ReasonCode.RUNNING,
            ReasonCode.FAILED,
            ReasonCode.RUNNING,
        ]
        assert reasons[0].text == (
            "The job is under way: 1 of 4 tasks completed, 1 failed, 1 waiting behind those."
        )
        assert (reasons[0].since, reasons[0].task_id) == (NOON, None)

    def test_a_reason_that_tasks_share_is_given_once_and_last(self) -> None:
        rows = [row_of(key, TaskState.PENDING) for key in "abc"]

        reasons = explain_job(make_snapshot(*rows, live_workers={}), [0, 1, 2])

        assert [item.code for item in reasons] == [
            ReasonCode.RUNNING,
            *[ReasonCode.DUE] * 3,
            ReasonCode.NO_WORKER,
        ]

    def test_more_tasks_than_shown_are_a_reason(self) -> None:
        *_, more = explain_job(make_snapshot(a_task()), [0], truncated=True)

        assert more.code is ReasonCode.LEFT_OUT
        assert more.remedy == Remedy(RemedyAction.LIST_JOB_TASKS, JOB_ID)

    def test_a_job_of_which_nothing_runs_at_this_moment_is_moving_on(self) -> None:
        _, moving = explain_job(make_snapshot(), [])

        assert moving.code is ReasonCode.MOVING_ON

    @pytest.mark.parametrize("kind", [IntentKind.CREATE, IntentKind.ADD])
    def test_a_job_whose_tasks_are_being_put_in_place_says_so(self, kind: IntentKind) -> None:
        job = a_job(5, intents=(an_intent(kind),))

        assert ReasonCode.BEING_CREATED in [
            item.code for item in explain_job(make_snapshot(job=job), [])
        ]

    def test_a_job_whose_tasks_all_exist_is_not_being_created(self) -> None:
        creation = an_intent(IntentKind.CREATE, numbers=NumberSet.below(2))
        job = a_job(2, completed=[0], intents=(creation,))

        whole = explain_job(make_snapshot(row_of("b", TaskState.PENDING), job=job), [1])
        half = explain_job(make_snapshot(job=job), [])

        assert ReasonCode.BEING_CREATED not in [item.code for item in whole]
        assert ReasonCode.BEING_CREATED in [item.code for item in half]

    def test_a_resume_that_is_being_carried_out_puts_nothing_in_place(self) -> None:
        job = a_job(5, intents=(an_intent(IntentKind.RESUME),))

        assert ReasonCode.BEING_CREATED not in [
            item.code for item in explain_job(make_snapshot(job=job), [])
        ]

    def test_a_job_that_is_being_cancelled_says_by_whom(self) -> None:
        job = a_job(5, cancel=CancelRequest(by="ann", reason=None, at=LATER))

        reasons = explain_job(make_snapshot(row_of("a", TaskState.PROCESSING), job=job), [0])

        assert [item.code for item in reasons] == [
            ReasonCode.RUNNING,
            ReasonCode.CANCELLING,
            ReasonCode.RUNNING,
        ]
        assert reasons[1].text == "ann has requested cancellation of the whole job."

    def test_a_completed_job_is_over(self) -> None:
        (reason,) = explain_job(make_snapshot(job=a_job(1, completed=[0], finished_at=LATER)), [])

        assert reason == WhyReason(
            code=ReasonCode.COMPLETED,
            text="The job is completed: 1 of 1 task completed.",
            since=LATER,
        )

    def test_a_failed_job_names_the_failed_task_and_the_remedy(self) -> None:
        job = a_job(5, completed=[0], failed=[1], cancelled=[2], blocked=[3, 4])

        failed, why = explain_job(make_snapshot(row_of("b", TaskState.FAILED), job=job), [1])

        assert failed.code is ReasonCode.FAILED
        assert failed.text == (
            "The job has failed: 1 of 5 tasks completed, 1 failed, 1 cancelled, "
            "2 waiting behind those."
        )
        assert failed.remedy == why.remedy == RESUME

    def test_a_cancelled_job_says_by_whom(self) -> None:
        job = a_job(2, completed=[0], cancelled=[1], cancel=a_cancel_request())

        (reason,) = explain_job(make_snapshot(job=job), [])

        assert reason.code is ReasonCode.CANCELLED
        assert reason.text == "ann cancelled the job (not needed): 1 of 2 tasks completed."
        assert (reason.since, reason.remedy) == (NOON, RESUME)

    def test_a_job_that_is_over_because_a_task_was_cancelled_says_that(self) -> None:
        (reason,) = explain_job(make_snapshot(job=a_job(2, completed=[0], cancelled=[1])), [])

        assert reason.text == "The job is cancelled: 1 of 2 tasks completed, 1 cancelled."
