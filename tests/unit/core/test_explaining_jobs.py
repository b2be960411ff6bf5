"""What waits for others is explained down to the root, and a job by its most telling tasks."""

import pytest

from longshore.core.chain import Chain, Link
from longshore.core.explaining import why_job, why_task
from longshore.core.numbers import NumberSet
from longshore.core.reasons import Code, Reason
from longshore.core.rows import CancelRequest, IntentKind, TaskRow
from longshore.core.states import TaskState
from tests.factories import JOB_ID, NOON, a_cancel_request, a_job, a_task, an_intent
from tests.unit.core.pictures import LATER, RESUME, A, a_picture, one_of, reasons_of, row_of


class TestWaiting:
    CHAIN = Chain(
        links=(
            Link(number=2, parents=(1, 3), awaited=2),
            Link(number=1, parents=(0,), awaited=1),
            Link(number=0),
        )
    )

    def rows(self, root: TaskRow) -> tuple[TaskRow, ...]:
        return (
            row_of("c", TaskState.WAITING),
            row_of("b", TaskState.WAITING),
            row_of("d", TaskState.IN_REVIEW),
            root,
        )

    def test_the_chain_is_told_down_to_the_task_that_runs(self) -> None:
        reasons = why_task(a_picture(*self.rows(row_of("a", TaskState.PROCESSING))), self.CHAIN)

        assert [(one.code, one.task_id) for one in reasons] == [
            (Code.WAITING, f"{JOB_ID}_c"),
            (Code.WAITING, f"{JOB_ID}_b"),
            (Code.RUNNING, A),
        ]
        assert reasons[0].text == "Task 'c' waits for 'b' (waiting), 'd' (in review)."
        assert reasons[1].text == "Task 'b' waits for 'a' (processing)."
        assert (reasons[0].since, reasons[0].remedy_command) == (NOON, None)

    @pytest.mark.parametrize(
        ("state", "said"),
        [(TaskState.FAILED, "failed"), (TaskState.CANCELLED, "was cancelled")],
    )
    def test_behind_a_failure_the_failure_and_the_remedy_are_told(
        self, state: TaskState, said: str
    ) -> None:
        root = row_of("a", state, finished_at=LATER)

        first, second, last = why_task(a_picture(*self.rows(root)), self.CHAIN)

        assert (first.code, second.code) == (Code.BEHIND_FAILURE, Code.BEHIND_FAILURE)
        assert (
            second.text == f"Task 'b' waits for 'a' ({state}), and cannot run because 'a' {said}."
        )
        assert (first.since, first.remedy_command) == (LATER, RESUME)
        assert (last.code.value, last.task_id) == (state.value, A)

    def test_a_parent_that_has_completed_unheard_is_told_as_news(self) -> None:
        reasons = why_task(a_picture(*self.rows(row_of("a", TaskState.COMPLETED))), self.CHAIN)

        assert reasons[-1].code is Code.MOVING_ON
        assert reasons[-1].text == (
            "Task 'a' has completed; what waits for it is told in a moment."
        )
        assert reasons[-1].since == NOON

    def test_a_task_that_has_nothing_left_to_wait_for_is_told_so(self) -> None:
        reason = one_of(a_task(state=TaskState.WAITING))

        assert reason.code is Code.MOVING_ON
        assert reason.text.startswith("All that task 'a' waited for has completed")

    def test_tasks_that_are_still_being_put_in_place_are_told_so(self) -> None:
        reasons = why_task(a_picture(), self.CHAIN)

        assert reasons[0].text == (
            "Task 'c' waits for 'b' (being put in place), 'd' (being put in place)."
        )
        assert reasons[0].since is None
        assert reasons[-1] == Reason(
            code=Code.BEING_CREATED, text="Task 'a' is still being put in place.", task_id=A
        )

    def test_many_parents_and_a_long_chain_are_counted(self) -> None:
        chain = Chain(
            links=(Link(number=1, parents=(0,), awaited=1_501), Link(number=0)), left_out=1
        )

        first, between, _ = why_task(a_picture(a_task()), chain)

        assert first.text == "Task 'b' waits for 'a' (pending), 1,500 more tasks."
        assert between == Reason(
            code=Code.LEFT_OUT, text="1 more task in between, each waiting for the next."
        )

    def test_a_job_that_is_being_cancelled_ends_all_of_its_tasks(self) -> None:
        job = a_job(5, cancel=a_cancel_request())

        *_, last = reasons_of(a_task(), job=job)

        assert last == Reason(
            code=Code.CANCELLING,
            text="ann has asked for the end of the whole job (not needed).",
            since=NOON,
        )
        assert one_of(a_task(state=TaskState.COMPLETED), job=job).code is Code.COMPLETED


class TestJobs:
    def test_a_job_under_way_tells_how_far_it_is_and_of_its_tasks(self) -> None:
        job = a_job(4, completed=[2], failed=[1], blocked=[3])
        picture = a_picture(
            row_of("b", TaskState.FAILED), row_of("a", TaskState.PROCESSING), job=job
        )

        reasons = why_job(picture, [1, 0])

        assert [one.code for one in reasons] == [Code.RUNNING, Code.FAILED, Code.RUNNING]
        assert reasons[0].text == (
            "The job is under way: 1 of 4 tasks completed, 1 failed, 1 waiting behind those."
        )
        assert (reasons[0].since, reasons[0].task_id) == (NOON, None)

    def test_what_several_tasks_wait_for_alike_is_said_once_and_last(self) -> None:
        rows = [row_of(key, TaskState.PENDING) for key in "abc"]

        reasons = why_job(a_picture(*rows, present={}), [0, 1, 2])

        assert [one.code for one in reasons] == [
            Code.RUNNING,
            *[Code.DUE] * 3,
            Code.NO_WORKER,
        ]

    def test_that_there_are_more_is_told(self) -> None:
        *_, more = why_job(a_picture(a_task()), [0], more=True)

        assert more.code is Code.LEFT_OUT
        assert more.text.endswith(f"see `longshore tasks --job {JOB_ID}`.")

    def test_a_job_of_which_nothing_runs_at_this_moment_is_moving_on(self) -> None:
        _, moving = why_job(a_picture(), [])

        assert moving.code is Code.MOVING_ON

    @pytest.mark.parametrize("kind", [IntentKind.CREATE, IntentKind.ADD])
    def test_a_job_whose_tasks_are_being_put_in_place_says_so(self, kind: IntentKind) -> None:
        job = a_job(5, intents=(an_intent(kind),))

        assert Code.BEING_CREATED in [one.code for one in why_job(a_picture(job=job), [])]

    def test_a_job_all_of_whose_tasks_are_there_is_not_said_to_be_put_in_place(self) -> None:
        creation = an_intent(IntentKind.CREATE, numbers=NumberSet.up_to(2))
        job = a_job(2, completed=[0], intents=(creation,))

        whole = why_job(a_picture(row_of("b", TaskState.PENDING), job=job), [1])
        half = why_job(a_picture(job=job), [])

        assert Code.BEING_CREATED not in [one.code for one in whole]
        assert Code.BEING_CREATED in [one.code for one in half]

    def test_a_resume_that_is_being_carried_out_puts_nothing_in_place(self) -> None:
        job = a_job(5, intents=(an_intent(IntentKind.RESUME),))

        assert Code.BEING_CREATED not in [one.code for one in why_job(a_picture(job=job), [])]

    def test_a_job_that_is_being_cancelled_says_by_whom(self) -> None:
        job = a_job(5, cancel=CancelRequest(by="ann", reason=None, at=LATER))

        reasons = why_job(a_picture(row_of("a", TaskState.PROCESSING), job=job), [0])

        assert [one.code for one in reasons] == [Code.RUNNING, Code.CANCELLING, Code.RUNNING]
        assert reasons[1].text == "ann has asked for the end of the whole job."

    def test_a_completed_job_is_over(self) -> None:
        (reason,) = why_job(a_picture(job=a_job(1, completed=[0], finished_at=LATER)), [])

        assert reason == Reason(
            code=Code.COMPLETED, text="The job is completed: 1 of 1 task completed.", since=LATER
        )

    def test_a_failed_job_tells_what_failed_and_how_to_go_on(self) -> None:
        job = a_job(5, completed=[0], failed=[1], cancelled=[2], blocked=[3, 4])

        failed, why = why_job(a_picture(row_of("b", TaskState.FAILED), job=job), [1])

        assert failed.code is Code.FAILED
        assert failed.text == (
            "The job has failed: 1 of 5 tasks completed, 1 failed, 1 cancelled, "
            "2 waiting behind those."
        )
        assert failed.remedy_command == why.remedy_command == RESUME

    def test_a_cancelled_job_says_by_whom(self) -> None:
        job = a_job(2, completed=[0], cancelled=[1], cancel=a_cancel_request())

        (reason,) = why_job(a_picture(job=job), [])

        assert reason.code is Code.CANCELLED
        assert reason.text == "ann cancelled the job (not needed): 1 of 2 tasks completed."
        assert (reason.since, reason.remedy_command) == (NOON, RESUME)

    def test_a_job_that_is_over_because_a_task_was_cancelled_says_that(self) -> None:
        (reason,) = why_job(a_picture(job=a_job(2, completed=[0], cancelled=[1])), [])

        assert reason.text == "The job is cancelled: 1 of 2 tasks completed, 1 cancelled."
