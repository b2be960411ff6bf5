"""What a job's row learns, when it is over, and what is told of it."""

from collections.abc import Iterable
from datetime import datetime

import pytest

from longshore.core import job
from longshore.core.changes import Reason, Refusal
from longshore.core.events import types as e
from longshore.core.events.event import Context
from longshore.core.job import (
    AddTasks,
    CancelJob,
    EndedTask,
    IntentDone,
    JobChange,
    ResumeJob,
    TasksEnded,
    tells,
)
from longshore.core.numbers import NO_NUMBERS, NumberSet
from longshore.core.rows import CancelRequest, Intent, IntentKind, JobRow
from longshore.core.states import JobState, TaskState
from tests.factories import (
    NOON,
    SECOND,
    a_cancel_request,
    a_document,
    a_job,
    a_job_spec,
    an_intent,
    changed,
    refused,
)

LATER = NOON + 10 * SECOND
GRAPH = a_document('{"keys":["t0"]}')
PRODUCER = Context(origin="producer", source="user")
OPERATOR = Context(origin="operator", source="user")
STATUSES: dict[str, str | None] = {"t0": "completed", "t1": None}
COMPLETED, FAILED, CANCELLED = TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED


def change_of(row: JobRow, command: job.JobCommand, *, now: datetime = LATER) -> JobChange:
    return changed(job.apply(row, command, now=now, change_id="new"))


def refusal_of(row: JobRow, command: job.JobCommand) -> Refusal:
    return refused(job.apply(row, command, now=LATER, change_id="new"))


def an_end(
    number: int, state: TaskState = COMPLETED, *, round: int = 1, blocks: Iterable[int] = ()
) -> EndedTask:
    return EndedTask(
        number=number, key=f"t{number}", round=round, state=state, blocks=NumberSet(blocks)
    )


def ends(*ended: EndedTask) -> TasksEnded:
    return TasksEnded(ended=ended, statuses=STATUSES)


def resume(*numbers: int, blocked: Iterable[int] = (), intent: Intent | None = None) -> ResumeJob:
    return ResumeJob(
        numbers=NumberSet(numbers),
        keys=[f"t{number}" for number in numbers],
        blocked=NumberSet(blocked),
        by="ann",
        intent=intent,
    )


def bodies(change: JobChange) -> list[e.EventBody]:
    return [event.body for event in change.events]


class TestCreate:
    TASKS = (
        e.TaskSummary(key="t0", name="command"),
        e.TaskSummary(key="t1", name="command", depends_on=("t0",)),
    )

    def test_a_new_job_runs_and_is_told_with_its_tasks(self) -> None:
        spec = a_job_spec("request-7")

        change = job.create(spec, self.TASKS, GRAPH, now=NOON, change_id="first")

        assert (change.expected_version, change.row.version) == (0, 1)
        assert (change.row.change_id, change.row.updated_at) == ("first", NOON)
        assert (change.row.total, change.row.round) == (2, 1)
        assert (change.row.state, change.row.graph) == (JobState.RUNNING, GRAPH)
        assert change.row.intents == ()
        assert bodies(change) == [
            e.JobCreated(job_id=spec.id, request_id="request-7", tasks=self.TASKS, total_tasks=2)
        ]

    def test_the_event_stands_in_the_jobs_own_history(self) -> None:
        spec = a_job_spec()

        change = job.create(spec, self.TASKS, GRAPH, now=NOON, change_id="first")

        (event,) = change.events
        assert (event.entity, event.sequence, event.at) == (f"JOB#{spec.id}", 1, NOON)
        assert (event.tenant, event.app, event.context) == ("acme", "shop", PRODUCER)
        assert (change.row.last_sequence, change.row.last_event_at) == (1, NOON)

    def test_rows_that_are_still_to_be_created_are_an_intent(self) -> None:
        intent = an_intent(IntentKind.CREATE, numbers=NumberSet.up_to(2), round=1)

        change = job.create(
            a_job_spec(), self.TASKS, GRAPH, now=NOON, change_id="first", intent=intent
        )

        assert change.row.intents == (intent,)


class TestTasksEnded:
    def test_an_end_is_recorded_silently_while_others_run(self) -> None:
        row = a_job(3)

        change = change_of(row, ends(an_end(1)))

        assert change.row.completed == NumberSet([1])
        assert (change.row.state, change.row.finished_at) == (JobState.RUNNING, None)
        assert change.events == ()
        assert (change.expected_version, change.row.version) == (1, 2)
        assert (change.row.last_sequence, change.row.last_event_at) == (1, NOON)

    def test_the_last_task_that_completes_completes_the_job(self) -> None:
        row = a_job(2, completed=[0])

        change = change_of(row, ends(an_end(1)))

        assert (change.row.state, change.row.finished_at) == (JobState.COMPLETED, LATER)
        assert bodies(change) == [
            e.JobCompleted(job_id=row.id, total_tasks=2, task_statuses=STATUSES, round=1)
        ]
        assert change.events[0].context == Context(origin="dispatcher")

    def test_an_end_that_is_recorded_changes_nothing_the_second_time(self) -> None:
        row = a_job(2, completed=[0])

        assert refusal_of(row, ends(an_end(0))).reason is Reason.NOTHING_TO_DO

    def test_the_first_failure_is_told_and_the_second_is_not(self) -> None:
        row = a_job(4)

        first = change_of(row, ends(an_end(0), an_end(2, FAILED, blocks=[3])))
        second = change_of(first.row, ends(an_end(1, FAILED)))

        assert bodies(first) == [
            e.JobFailureDetected(job_id=row.id, failed_key="t2", task_statuses=STATUSES, round=1)
        ]
        assert (first.row.state, first.row.blocked) == (JobState.RUNNING, NumberSet([3]))
        assert second.events == ()
        assert second.row.failed == NumberSet([1, 2])

    def test_a_job_has_failed_when_all_that_is_left_stands_behind_a_failure(self) -> None:
        row = a_job(4, completed=[0])

        change = change_of(row, ends(an_end(1, FAILED, blocks=[2, 3])))

        assert (change.row.state, change.row.finished_at) == (JobState.FAILED, LATER)
        assert [event.type for event in change.events] == ["Job Failure Detected"]

    def test_a_cancelled_task_without_a_failure_ends_the_job_as_cancelled(self) -> None:
        row = a_job(3, completed=[0])

        change = change_of(row, ends(an_end(1, CANCELLED, blocks=[2])))

        assert change.row.state is JobState.CANCELLED
        assert bodies(change) == [e.JobCancelled(job_id=row.id, by="user", round=1)]

    def test_a_task_that_was_blocked_and_then_ended_is_no_longer_blocked(self) -> None:
        row = a_job(3, failed=[0], blocked=[1, 2])

        change = change_of(row, ends(an_end(1, CANCELLED, blocks=[2])))

        assert (change.row.blocked, change.row.cancelled) == (NumberSet([2]), NumberSet([1]))

    def test_what_ends_after_the_job_does_not_move_the_end_of_the_job(self) -> None:
        row = a_job(3, failed=[0], blocked=[1, 2])

        change = change_of(row, ends(an_end(1, CANCELLED)))

        assert (change.row.state, change.row.finished_at) == (JobState.FAILED, NOON)
        assert change.events == ()

    def test_a_cancelled_job_does_not_end_again_with_what_waited_behind(self) -> None:
        row = a_job(2, cancelled=[0], blocked=[1])

        change = change_of(row, ends(an_end(1, CANCELLED)))

        assert (change.row.state, change.row.blocked) == (JobState.CANCELLED, NO_NUMBERS)
        assert change.events == ()

    def test_the_first_word_about_a_task_is_the_last_of_its_round(self) -> None:
        row = a_job(2, completed=[0])

        assert refusal_of(row, ends(an_end(0, FAILED, blocks=[1]))).reason is Reason.NOTHING_TO_DO

    def test_an_end_from_before_a_resume_that_is_under_way_is_passed_over(self) -> None:
        row = a_job(2, round=2, intents=(an_intent(numbers=NumberSet([0]), round=2),))

        stale = refusal_of(row, ends(an_end(0, FAILED, round=1, blocks=[1])))
        current = change_of(row, ends(an_end(0, FAILED, round=2)))
        other = change_of(row, ends(an_end(1, round=1)))

        assert stale.reason is Reason.NOTHING_TO_DO
        assert current.row.failed == NumberSet([0])
        assert other.row.completed == NumberSet([1])

    def test_an_open_intent_of_another_kind_makes_no_end_stale(self) -> None:
        intent = an_intent(IntentKind.CANCEL, numbers=NumberSet([0]), round=2)

        change = change_of(a_job(2, intents=(intent,)), ends(an_end(0, CANCELLED, round=1)))

        assert change.row.cancelled == NumberSet([0])


class TestTells:
    def test_statuses_are_needed_for_the_first_failure_of_a_round(self) -> None:
        failing = [an_end(0, FAILED)]

        assert tells(a_job(3), failing)
        assert not tells(a_job(3, failed=[1]), failing)
        assert tells(a_job(3, failed=[1], round=2, failure_told_in=1), failing)

    def test_statuses_are_needed_for_the_end_of_a_job_that_completes(self) -> None:
        assert tells(a_job(2, completed=[0]), [an_end(1)])
        assert not tells(a_job(3, completed=[0]), [an_end(1)])

    def test_statuses_are_not_needed_for_what_is_told_already(self) -> None:
        assert not tells(a_job(2, completed=[0, 1]), [an_end(1)])

    def test_statuses_are_not_needed_for_a_cancellation(self) -> None:
        assert not tells(a_job(1), [an_end(0, CANCELLED)])


class TestAddTasks:
    NEW = (e.TaskSummary(key="t3", name="command", depends_on=("t0",)),)

    def test_a_running_job_takes_more_tasks(self) -> None:
        row = a_job(3, completed=[0])

        change = change_of(row, AddTasks(tasks=self.NEW, graph=GRAPH))

        assert (change.row.total, change.row.graph) == (4, GRAPH)
        assert change.row.completed == NumberSet([0])
        assert bodies(change) == [
            e.JobTasksAdded(
                job_id=row.id, new_tasks=self.NEW, previous_total_tasks=3, total_tasks_now=4
            )
        ]
        assert change.events[0].context == PRODUCER

    def test_rows_that_are_still_to_be_created_are_one_more_intent(self) -> None:
        first, second = an_intent(id="first"), an_intent(IntentKind.CREATE, id="second")

        change = change_of(
            a_job(intents=(first,)), AddTasks(tasks=self.NEW, graph=GRAPH, intent=second)
        )

        assert change.row.intents == (first, second)

    def test_a_failed_job_runs_again_with_new_tasks(self) -> None:
        row = a_job(2, failed=[0], blocked=[1])

        change = change_of(row, AddTasks(tasks=self.NEW, graph=GRAPH))

        assert (change.row.state, change.row.finished_at) == (JobState.RUNNING, None)

    def test_a_failed_job_stays_failed_if_the_new_tasks_stand_behind_its_failure(self) -> None:
        row = a_job(2, failed=[0], blocked=[1])

        change = change_of(row, AddTasks(tasks=self.NEW, graph=GRAPH, blocked=NumberSet([2])))

        assert (change.row.state, change.row.finished_at) == (JobState.FAILED, NOON)
        assert change.row.blocked == NumberSet([1, 2])

    @pytest.mark.parametrize(
        ("row", "described"),
        [
            (a_job(1, completed=[0]), "completed"),
            (a_job(1, cancelled=[0]), "cancelled"),
            (a_job(1, cancel=a_cancel_request()), "being cancelled"),
        ],
        ids=["completed", "cancelled", "being cancelled"],
    )
    def test_a_job_that_has_ended_or_is_to_end_takes_no_more(
        self, row: JobRow, described: str
    ) -> None:
        refusal = refusal_of(row, AddTasks(tasks=self.NEW, graph=GRAPH))

        assert (refusal.reason, refusal.detail) == (Reason.ENDED, f"the job is {described}")


class TestCancel:
    COMMAND = CancelJob(by="bob", reason="too late")

    def test_a_cancellation_is_written_down_before_it_is_carried_out(self) -> None:
        intent = an_intent(IntentKind.CANCEL, numbers=NumberSet.up_to(3), round=1)

        change = change_of(a_job(3), CancelJob(by="bob", reason="too late", intent=intent))

        assert change.row.cancel == CancelRequest(by="bob", reason="too late", at=LATER)
        assert (change.row.intents, change.row.state) == ((intent,), JobState.RUNNING)
        assert change.events == ()

    def test_a_job_is_cancelled_when_all_its_tasks_have_ended(self) -> None:
        row = change_of(a_job(2), self.COMMAND).row

        first = change_of(row, ends(an_end(0, CANCELLED, blocks=[1])))
        second = change_of(first.row, ends(an_end(1, CANCELLED)))

        assert (first.row.state, first.events) == (JobState.RUNNING, ())
        assert (second.row.state, second.row.finished_at) == (JobState.CANCELLED, LATER)
        assert bodies(second) == [
            e.JobCancelled(job_id=row.id, by="bob", reason="too late", round=1)
        ]

    def test_a_job_whose_tasks_were_all_faster_has_completed(self) -> None:
        row = change_of(a_job(1), self.COMMAND).row

        change = change_of(row, ends(an_end(0)))

        assert change.row.state is JobState.COMPLETED
        assert [event.type for event in change.events] == ["Job Completed"]

    def test_a_job_that_is_cancelled_after_a_failure_ends_as_cancelled(self) -> None:
        row = change_of(a_job(3, failed=[0]), self.COMMAND).row

        change = change_of(row, ends(an_end(1), an_end(2, CANCELLED)))

        assert change.row.state is JobState.CANCELLED
        assert [event.type for event in change.events] == ["Job Cancelled"]

    def test_a_job_of_which_nothing_was_left_to_cancel_has_failed(self) -> None:
        row = change_of(a_job(2, failed=[0]), self.COMMAND).row

        change = change_of(row, ends(an_end(1)))

        assert (change.row.state, change.row.finished_at) == (JobState.FAILED, LATER)
        assert change.events == ()

    def test_what_waits_behind_a_failure_can_be_cancelled(self) -> None:
        row = a_job(2, failed=[0], blocked=[1])

        asked = change_of(row, self.COMMAND).row
        ended = change_of(asked, ends(an_end(1, CANCELLED)), now=LATER + SECOND)

        assert (asked.state, asked.finished_at) == (JobState.RUNNING, None)
        assert ended.row.state is JobState.CANCELLED
        assert ended.row.finished_at == LATER + SECOND
        assert [event.type for event in ended.events] == ["Job Cancelled"]

    @pytest.mark.parametrize(
        "row",
        [
            a_job(1, completed=[0]),
            a_job(2, completed=[0], failed=[1]),
            a_job(2, cancelled=[0], blocked=[1]),
        ],
        ids=["completed", "failed", "cancelled"],
    )
    def test_what_has_ended_cannot_be_cancelled(self, row: JobRow) -> None:
        refusal = refusal_of(row, self.COMMAND)

        assert (refusal.reason, refusal.detail) == (Reason.ENDED, f"the job is {row.state}")

    def test_asking_twice_changes_nothing(self) -> None:
        row = a_job(2, cancel=a_cancel_request())

        assert refusal_of(row, self.COMMAND).reason is Reason.NOTHING_TO_DO


class TestResume:
    def test_a_resume_is_a_new_round_of_the_tasks_it_names(self) -> None:
        row = a_job(5, completed=[0], failed=[1, 2], blocked=[3, 4])

        change = change_of(row, resume(1, blocked=[4]))

        assert (change.row.round, change.row.state) == (2, JobState.RUNNING)
        assert (change.row.failed, change.row.blocked) == (NumberSet([2]), NumberSet([4]))
        assert (change.row.completed, change.row.finished_at) == (NumberSet([0]), None)
        assert bodies(change) == [e.JobResumed(job_id=row.id, round=2, tasks=("t1",), by="ann")]
        assert change.events[0].context == OPERATOR

    def test_a_failure_and_an_end_are_told_again_in_the_new_round(self) -> None:
        row = change_of(a_job(2, completed=[1], failed=[0]), resume(0)).row

        failed = change_of(row, ends(an_end(0, FAILED, round=2)))
        completed = change_of(row, ends(an_end(0, round=2)))

        assert bodies(failed) == [
            e.JobFailureDetected(job_id=row.id, failed_key="t0", task_statuses=STATUSES, round=2)
        ]
        assert bodies(completed) == [
            e.JobCompleted(job_id=row.id, total_tasks=2, task_statuses=STATUSES, round=2)
        ]

    def test_what_has_ended_is_not_blocked_whatever_it_stands_behind(self) -> None:
        row = a_job(4, failed=[0, 1], cancelled=[2], blocked=[3])

        change = change_of(row, resume(0, blocked=[2, 3]))

        assert change.row.blocked == NumberSet([3])

    def test_a_cancelled_job_can_be_resumed(self) -> None:
        row = a_job(2, completed=[0], cancelled=[1], cancel=a_cancel_request())

        change = change_of(row, resume(1))

        assert (change.row.cancelled, change.row.cancel) == (NO_NUMBERS, None)
        assert change.row.state is JobState.RUNNING

    def test_a_resume_that_is_carried_out_later_is_one_more_intent(self) -> None:
        intent = an_intent(numbers=NumberSet([0]), round=2)

        change = change_of(a_job(1, failed=[0]), resume(0, intent=intent))

        assert change.row.intents == (intent,)

    @pytest.mark.parametrize("numbers", [(), (0,), (2,), (1, 2)])
    def test_only_what_failed_or_was_cancelled_is_resumed(self, numbers: tuple[int, ...]) -> None:
        row = a_job(3, completed=[0], failed=[1])

        assert refusal_of(row, resume(*numbers)).reason is Reason.WRONG_STATE

    def test_nothing_is_resumed_behind_a_task_that_is_not(self) -> None:
        row = a_job(2, failed=[0], cancelled=[1])

        assert refusal_of(row, resume(1, blocked=[1])).reason is Reason.WRONG_STATE

    def test_nothing_is_resumed_while_the_job_is_being_cancelled(self) -> None:
        row = a_job(2, failed=[0], cancel=a_cancel_request())

        assert refusal_of(row, resume(0)).reason is Reason.WRONG_STATE


class TestIntentDone:
    def test_an_intent_that_was_carried_out_is_closed(self) -> None:
        first, second = an_intent(id="first"), an_intent(id="second")

        change = change_of(a_job(intents=(first, second)), IntentDone(intent_id="first"))

        assert change.row.intents == (second,)
        assert change.events == ()

    def test_an_intent_is_closed_once(self) -> None:
        row = a_job(intents=(an_intent(id="second"),))

        assert refusal_of(row, IntentDone(intent_id="first")).reason is Reason.NOTHING_TO_DO


class TestState:
    def test_the_state_is_what_the_sets_add_up_to(self) -> None:
        assert a_job(2, completed=[0]).state is JobState.RUNNING
        assert a_job(2, failed=[0]).state is JobState.RUNNING
        assert a_job(2, completed=[0, 1]).state is JobState.COMPLETED
        assert a_job(2, completed=[0], cancelled=[1]).state is JobState.CANCELLED
        assert a_job(2, failed=[0], cancelled=[1]).state is JobState.FAILED
        assert a_job(2, failed=[0], blocked=[1]).state is JobState.FAILED

    def test_a_job_that_is_being_cancelled_runs_until_nothing_waits_any_more(self) -> None:
        row = a_job(3, failed=[0], cancelled=[1], blocked=[2], cancel=a_cancel_request())

        assert row.state is JobState.RUNNING
