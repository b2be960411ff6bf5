"""Another round for a task that failed or was cancelled: pending, or waiting as it did before."""

import pytest

from longshore.core.events import types as e
from longshore.core.events.event import EventContext
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import RefusalReason
from longshore.core.tasks.states import TaskState
from tests.factories import a_document, a_failure, a_task
from tests.unit.core.attempt_commands import LATER, change_of, refusal_of

OPERATOR = EventContext(origin="operator", source="user")
# Cancelled before it could run.
WAITED = a_task(state=TaskState.CANCELLED, attempt=0, awaits=NumberSet([1, 2]))


class TestResume:
    @pytest.mark.parametrize("state", [TaskState.FAILED, TaskState.CANCELLED])
    def test_a_resumed_task_is_pending_in_a_new_round_with_fresh_attempts(
        self, state: TaskState
    ) -> None:
        row = a_task(
            state=state,
            attempt=3,
            attempts_used=3,
            checkpoint="blobs/step-2",
            failure=a_failure(),
            exit_code=1,
            result=a_document("1"),
        )

        change = change_of(row, c.Resume(round=2, by="ann"))

        assert (change.row.state, change.row.round) == (TaskState.PENDING, 2)
        assert (change.row.attempt, change.row.attempts_used, change.row.fence) == (3, 0, 3)
        assert (change.row.failure, change.row.exit_code, change.row.result) == (None, None, None)
        assert (change.row.cancel, change.row.finished_at) == (None, None)
        assert (change.row.due_at, change.row.enqueued_at) == (LATER, LATER)
        assert change.row.checkpoint == "blobs/step-2"
        assert len(change.effects) == 1

    def test_a_resume_emits_task_pending_with_its_round(self) -> None:
        row = a_task(state=TaskState.FAILED)

        (event,) = change_of(row, c.Resume(round=4, by="ann")).events

        assert event.body == e.TaskPending(
            task_id=row.id, job_id=row.spec.job_id, name="command", round=4
        )
        assert event.context == OPERATOR

    def test_a_resume_that_is_carried_out_twice_acts_once(self) -> None:
        resumed = change_of(a_task(state=TaskState.FAILED), c.Resume(round=2, by="ann")).row

        refusal = refusal_of(resumed, c.Resume(round=2, by="ann"))

        assert refusal.reason is RefusalReason.STALE_ROUND

    @pytest.mark.parametrize(
        "state",
        [s for s in TaskState if s not in (TaskState.FAILED, TaskState.CANCELLED)],
    )
    def test_what_has_not_failed_cannot_be_resumed(self, state: TaskState) -> None:
        refusal = refusal_of(a_task(state=state), c.Resume(round=2, by="ann"))

        assert refusal.reason is RefusalReason.WRONG_STATE

    def test_a_task_that_was_cancelled_while_it_waited_waits_again_for_the_parents_that_are_left(
        self,
    ) -> None:
        change = change_of(WAITED, c.Resume(round=2, by="ann", completed=NumberSet([0, 1])))

        assert (change.row.state, change.row.awaits) == (TaskState.WAITING, NumberSet([2]))
        assert (change.row.round, change.row.cancel) == (2, None)
        assert (change.row.finished_at, change.row.due_at) == (None, None)
        assert change.effects == ()

    def test_a_resume_into_waiting_emits_its_round(self) -> None:
        (event,) = change_of(WAITED, c.Resume(round=3, by="ann")).events

        assert event.body == e.TaskWaiting(task_id=WAITED.id, job_id=WAITED.spec.job_id, round=3)
        assert event.context == OPERATOR

    def test_a_task_that_waits_again_continues_when_its_last_parent_completes(self) -> None:
        waiting = change_of(WAITED, c.Resume(round=2, by="ann", completed=NumberSet([1]))).row

        repeated = refusal_of(waiting, c.ParentsCompleted(numbers=NumberSet([1])))
        change = change_of(waiting, c.ParentsCompleted(numbers=NumberSet([2])))

        assert repeated.reason is RefusalReason.NOTHING_TO_DO
        assert (change.row.state, change.row.round) == (TaskState.PENDING, 2)
        assert [event.type for event in change.events] == ["Task Pending"]

    def test_a_resume_into_waiting_that_is_carried_out_twice_acts_once(self) -> None:
        waiting = change_of(WAITED, c.Resume(round=2, by="ann")).row

        assert refusal_of(waiting, c.Resume(round=2, by="ann")).reason is RefusalReason.STALE_ROUND

    def test_a_task_whose_parents_completed_while_it_was_cancelled_is_pending_at_once(
        self,
    ) -> None:
        command = c.Resume(round=2, by="ann", completed=NumberSet([0, 1, 2]))

        change = change_of(WAITED, command)

        assert (change.row.state, change.row.awaits) == (TaskState.PENDING, NO_NUMBERS)
