"""What a worker does with a message, by the row that it points to."""

from datetime import timedelta

import pytest

from longshore.core.queues import MessageAction, TriageDecision, triage
from longshore.core.tasks.states import TaskState
from tests.factories import LASTS, MARGIN, NOON, a_task

MICROSECOND = timedelta(microseconds=1)
OVER = NOON + LASTS + MARGIN


def test_a_message_without_a_task_is_rejected() -> None:
    assert triage(None, now=NOON, margin=MARGIN) == TriageDecision(action=MessageAction.REJECT)


def test_a_task_that_is_due_is_run() -> None:
    assert triage(a_task(due_at=NOON), now=NOON, margin=MARGIN) == TriageDecision(
        action=MessageAction.RUN
    )


def test_a_pending_task_without_a_due_time_is_run() -> None:
    assert triage(a_task(due_at=None), now=NOON, margin=MARGIN).action is MessageAction.RUN


def test_a_task_that_is_not_due_is_put_off_until_it_is() -> None:
    row = a_task(due_at=NOON)

    judgement = triage(row, now=NOON - MICROSECOND, margin=MARGIN)

    assert judgement == TriageDecision(action=MessageAction.DELAY, until=NOON)


@pytest.mark.parametrize(
    "state",
    [
        TaskState.COMPLETED,
        TaskState.FAILED,
        TaskState.CANCELLED,
        TaskState.WAITING,
        TaskState.IN_REVIEW,
        TaskState.PARKED,
    ],
)
def test_a_message_for_a_task_that_is_not_to_be_run_is_dropped(state: TaskState) -> None:
    judgement = triage(a_task(state=state), now=NOON, margin=MARGIN)

    assert judgement == TriageDecision(action=MessageAction.DROP)


def test_a_task_in_good_hands_is_looked_at_again_when_its_lease_could_be_over() -> None:
    row = a_task(state=TaskState.PROCESSING)

    judgement = triage(row, now=OVER - MICROSECOND, margin=MARGIN)

    assert judgement == TriageDecision(action=MessageAction.DELAY, until=OVER)


def test_a_task_whose_lease_is_over_is_taken_over() -> None:
    row = a_task(state=TaskState.PROCESSING)

    assert triage(row, now=OVER, margin=MARGIN) == TriageDecision(action=MessageAction.TAKE_OVER)
