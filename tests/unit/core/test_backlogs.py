"""A backlog of dead letters or parked tasks is counted by queue and reason."""

from datetime import timedelta

import pytest

from longshore.core.alerts import (
    EMPTY_BACKLOG,
    Backlog,
    BacklogGroup,
    BacklogItem,
    backlog_of,
    dead_letter_item,
    parked_task_item,
)
from longshore.core.budgets import BudgetScope
from longshore.core.dead_letters import DeadLetter
from longshore.core.queues import QueueMessage
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import TaskState
from tests.factories import NOON, a_parking, a_task

MINUTE = timedelta(minutes=1)


def an_item(id_: str, queue: str = "default", why: str = "own", minutes: int = 0) -> BacklogItem:
    return BacklogItem(id=id_, queue=queue, reason=why, at=NOON + minutes * MINUTE)


def test_a_backlog_is_counted_by_queue_and_reason_the_most_frequent_first() -> None:
    items = [
        an_item("a", why="own", minutes=1),
        an_item("b", why="job", minutes=5),
        an_item("c", why="job", minutes=3),
        an_item("d", queue="mail", why="day", minutes=2),
        an_item("b", why="job", minutes=5),
    ]

    assert backlog_of(items) == Backlog(
        total=4,
        groups=(
            BacklogGroup(queue="default", reason="job", count=2),
            BacklogGroup(queue="default", reason="own", count=1),
            BacklogGroup(queue="mail", reason="day", count=1),
        ),
        newest=(items[1], items[2], items[3], items[0]),
    )
    assert backlog_of([]) == EMPTY_BACKLOG


def test_at_most_the_newest_items_up_to_the_limit_are_counted() -> None:
    items = [an_item(str(n), why="own" if n < 3 else "job", minutes=n) for n in range(9)]

    assert backlog_of(items, limit=9).truncated is False
    assert backlog_of(items, limit=6) == Backlog(
        total=6,
        truncated=True,
        groups=(BacklogGroup(queue="default", reason="job", count=6),),
        newest=tuple(items[:3:-1]),
    )


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        (BudgetScope.STEP, "own"),
        (BudgetScope.TASK, "own"),
        (BudgetScope.JOB, "job"),
        (BudgetScope.DAY, "day"),
    ],
)
def test_the_reason_of_a_parked_task_is_the_scope_of_its_exhausted_budget(
    scope: BudgetScope, why: str
) -> None:
    row = a_task(state=TaskState.PARKED, parked=a_parking(scope))

    assert parked_task_item(row) == BacklogItem(
        id=row.id, queue=row.spec.queue, reason=why, at=NOON
    )


@pytest.mark.parametrize("state", [state for state in TaskState if state is not TaskState.PARKED])
def test_a_task_that_is_not_parked_is_no_backlog_item(state: TaskState) -> None:
    assert parked_task_item(a_task(state=state)) is None


@pytest.mark.parametrize(("category", "why"), [(ErrorCategory.AUTH, "auth"), (None, "unknown")])
def test_the_reason_of_a_dead_task_is_the_category_of_its_failure(
    category: ErrorCategory | None, why: str
) -> None:
    letter = DeadLetter(id="a", at=NOON, queue="mail", reason="failed", category=category)

    assert dead_letter_item(letter) == BacklogItem(id="a", queue="mail", reason=why, at=NOON)


def test_the_reason_of_a_dead_message_is_message() -> None:
    message = QueueMessage(id="1", queue="mail", body="", receive_count=9, sent_at=NOON)
    letter = DeadLetter(id="msg-1", at=NOON, queue="mail", reason="no task", message=message)

    assert dead_letter_item(letter).reason == "message"
