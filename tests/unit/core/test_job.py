"""How a job's row changes, when the job ends or resumes, and which events it emits."""

from collections.abc import Iterable

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.jobs.job import IntentDone, ResumeJob, needs_statuses
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks.changes import RefusalReason
from longshore.core.tasks.rows import IntentKind
from longshore.core.tasks.states import JobState, TaskState
from tests.factories import NOON, a_cancel_request, a_job, an_intent
from tests.unit.core.job_commands import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LATER,
    STATUSES,
    an_end,
    bodies,
    change_of,
    ends,
    refusal_of,
)

OPERATOR = EventContext(origin="operator", source="user")


def resume(*numbers: int, blocked: Iterable[int] = (), later: bool = False) -> ResumeJob:
    return ResumeJob(
        numbers=NumberSet(numbers),
        keys=[f"t{number}" for number in numbers],
        blocked=NumberSet(blocked),
        by="ann",
        later=later,
    )


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
        assert change.events[0].context == EventContext(origin="dispatcher")

    def test_an_end_that_is_recorded_changes_nothing_the_second_time(self) -> None:
        row = a_job(2, completed=[0])

        assert refusal_of(row, ends(an_end(0))).reason is RefusalReason.NOTHING_TO_DO

    def test_the_first_failure_emits_an_event_and_the_second_does_not(self) -> None:
        row = a_job(4)

        first = change_of(row, ends(an_end(0), an_end(2, FAILED, blocks=[3])))
        second = change_of(first.row, ends(an_end(1, FAILED)))

        assert bodies(first) == [
            e.JobFailureDetected(job_id=row.id, failed_key="t2", task_statuses=STATUSES, round=1)
        ]
        assert (first.row.state, first.row.blocked) == (JobState.RUNNING, NumberSet([3]))
        assert second.events == ()
        assert second.row.failed == NumberSet([1, 2])

    def test_a_job_has_failed_when_all_other_tasks_are_blocked(self) -> None:
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

        assert (
            refusal_of(row, ends(an_end(0, FAILED, blocks=[1]))).reason
            is RefusalReason.NOTHING_TO_DO
        )

    def test_an_end_from_before_a_resume_that_is_under_way_is_passed_over(self) -> None:
        row = a_job(2, round=2, intents=(an_intent(numbers=NumberSet([0]), round=2),))

        stale = refusal_of(row, ends(an_end(0, FAILED, round=1, blocks=[1])))
        current = change_of(row, ends(an_end(0, FAILED, round=2)))
        other = change_of(row, ends(an_end(1, round=1)))

        assert stale.reason is RefusalReason.NOTHING_TO_DO
        assert current.row.failed == NumberSet([0])
        assert other.row.completed == NumberSet([1])

    def test_a_missing_final_event_of_a_job_is_emitted_later(self) -> None:
        completed = a_job(2, completed=[0, 1], end_emitted_round=0)
        cancelled = a_job(2, round=2, cancelled=[0], blocked=[1], end_emitted_round=1)

        ended, called_off = change_of(completed, ends()), change_of(cancelled, ends())

        assert bodies(ended) == [
            e.JobCompleted(job_id=completed.id, total_tasks=2, task_statuses=STATUSES, round=1)
        ]
        assert bodies(called_off) == [e.JobCancelled(job_id=cancelled.id, by="user", round=2)]
        assert (ended.row.end_emitted_round, called_off.row.end_emitted_round) == (1, 2)
        for change in (ended, called_off):
            assert change.row.finished_at == NOON
            assert refusal_of(change.row, ends()).reason is RefusalReason.NOTHING_TO_DO

    def test_a_running_or_failed_job_has_no_final_event_to_emit(self) -> None:
        for row in (a_job(2, completed=[0]), a_job(2, failed=[0, 1])):
            assert not row.end_unreported
            assert refusal_of(row, ends()).reason is RefusalReason.NOTHING_TO_DO

    @pytest.mark.parametrize("state", [COMPLETED, FAILED, CANCELLED])
    def test_the_end_of_the_last_task_that_was_to_be_created_closes_the_creation(
        self, state: TaskState
    ) -> None:
        creation = an_intent(IntentKind.CREATE, numbers=NumberSet.below(2), round=1)
        row = a_job(2, completed=[0], intents=(creation,))

        assert change_of(row, ends(an_end(1, state))).row.intents == ()

    @pytest.mark.parametrize(
        ("kind", "numbers"),
        [
            (IntentKind.CREATE, NumberSet.below(2)),
            (IntentKind.CREATE, NO_NUMBERS),  # of a version that did not name them
            (IntentKind.ADD, NumberSet([1])),
            (IntentKind.CANCEL, NumberSet([1])),
        ],
    )
    def test_an_end_closes_nothing_that_may_have_more_to_do(
        self, kind: IntentKind, numbers: NumberSet
    ) -> None:
        intent = an_intent(kind, numbers=numbers, round=1)

        change = change_of(a_job(2, intents=(intent,)), ends(an_end(1)))

        assert change.row.intents == (intent,)

    def test_an_open_intent_of_another_kind_makes_no_end_stale(self) -> None:
        intent = an_intent(IntentKind.CANCEL, numbers=NumberSet([0]), round=2)

        change = change_of(a_job(2, intents=(intent,)), ends(an_end(0, CANCELLED, round=1)))

        assert change.row.cancelled == NumberSet([0])


class TestEvents:
    def test_statuses_are_needed_for_the_first_failure_of_a_round(self) -> None:
        failing = [an_end(0, FAILED)]

        assert needs_statuses(a_job(3), failing)
        assert not needs_statuses(a_job(3, failed=[1]), failing)
        assert needs_statuses(a_job(3, failed=[1], round=2, failure_emitted_round=1), failing)

    def test_statuses_are_needed_for_the_end_of_a_job_that_completes(self) -> None:
        assert needs_statuses(a_job(2, completed=[0]), [an_end(1)])
        assert not needs_statuses(a_job(3, completed=[0]), [an_end(1)])
        assert needs_statuses(a_job(1, completed=[0], end_emitted_round=0), [])

    def test_statuses_are_not_needed_for_events_that_were_emitted(self) -> None:
        assert not needs_statuses(a_job(2, completed=[0, 1]), [an_end(1)])

    def test_statuses_are_not_needed_for_a_cancellation(self) -> None:
        assert not needs_statuses(a_job(1), [an_end(0, CANCELLED)])


class TestResume:
    def test_a_resume_is_a_new_round_of_the_tasks_it_names(self) -> None:
        row = a_job(5, completed=[0], failed=[1, 2], blocked=[3, 4])

        change = change_of(row, resume(1, blocked=[4]))

        assert (change.row.round, change.row.state) == (2, JobState.RUNNING)
        assert (change.row.failed, change.row.blocked) == (NumberSet([2]), NumberSet([4]))
        assert (change.row.completed, change.row.finished_at) == (NumberSet([0]), None)
        assert bodies(change) == [e.JobResumed(job_id=row.id, round=2, tasks=("t1",), by="ann")]
        assert change.events[0].context == OPERATOR

    def test_a_failure_and_an_end_are_emitted_again_in_a_new_round(self) -> None:
        row = change_of(a_job(2, completed=[1], failed=[0]), resume(0)).row

        failed = change_of(row, ends(an_end(0, FAILED, round=2)))
        completed = change_of(row, ends(an_end(0, round=2)))

        assert bodies(failed) == [
            e.JobFailureDetected(job_id=row.id, failed_key="t0", task_statuses=STATUSES, round=2)
        ]
        assert bodies(completed) == [
            e.JobCompleted(job_id=row.id, total_tasks=2, task_statuses=STATUSES, round=2)
        ]

    def test_an_ended_task_is_not_blocked_by_a_failed_dependency(self) -> None:
        row = a_job(4, failed=[0, 1], cancelled=[2], blocked=[3])

        change = change_of(row, resume(0, blocked=[2, 3]))

        assert change.row.blocked == NumberSet([3])

    def test_a_cancelled_job_can_be_resumed(self) -> None:
        row = a_job(2, completed=[0], cancelled=[1], cancel=a_cancel_request())

        change = change_of(row, resume(1))

        assert (change.row.cancelled, change.row.cancel) == (NO_NUMBERS, None)
        assert change.row.state is JobState.RUNNING

    def test_a_resume_that_is_carried_out_later_is_one_more_intent(self) -> None:
        change = change_of(a_job(1, failed=[0]), resume(0, later=True))

        assert change.row.intents == (an_intent(id="new", numbers=NumberSet([0]), round=2),)

    @pytest.mark.parametrize("numbers", [(), (0,), (2,), (1, 2)])
    def test_only_what_failed_or_was_cancelled_is_resumed(self, numbers: tuple[int, ...]) -> None:
        row = a_job(3, completed=[0], failed=[1])

        assert refusal_of(row, resume(*numbers)).reason is RefusalReason.WRONG_STATE

    def test_nothing_is_resumed_behind_a_task_that_is_not(self) -> None:
        row = a_job(2, failed=[0], cancelled=[1])

        assert refusal_of(row, resume(1, blocked=[1])).reason is RefusalReason.WRONG_STATE

    def test_nothing_is_resumed_while_the_job_is_being_cancelled(self) -> None:
        row = a_job(2, failed=[0], cancel=a_cancel_request())

        assert refusal_of(row, resume(0)).reason is RefusalReason.WRONG_STATE


class TestIntentDone:
    def test_an_intent_that_was_carried_out_is_closed(self) -> None:
        first, second = an_intent(id="first"), an_intent(id="second")

        change = change_of(a_job(intents=(first, second)), IntentDone(intent_id="first"))

        assert change.row.intents == (second,)
        assert change.events == ()

    def test_an_intent_is_closed_once(self) -> None:
        row = a_job(intents=(an_intent(id="second"),))

        assert refusal_of(row, IntentDone(intent_id="first")).reason is RefusalReason.NOTHING_TO_DO


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
