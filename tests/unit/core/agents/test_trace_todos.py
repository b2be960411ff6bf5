"""The agent's own list, item by item or written anew, and the time in each state."""

import pytest

from longshore.core.agents.events import TodoSeen, TodosReplaced, TodoState, TodoUpdated
from longshore.core.agents.trace import MAX_TODOS, Todos
from tests.unit.core.agents.trace_samples import at

PENDING, BEGUN = TodoState.PENDING, TodoState.IN_PROGRESS
DONE, DROPPED = TodoState.COMPLETED, TodoState.DELETED


def todo(id_: str = "1", subject: str = "Look", seconds: float = 0, **more_: TodoState) -> TodoSeen:
    return TodoSeen(at=at(seconds), todo_id=id_, subject=subject, **more_)


def moved(
    state: TodoState | None, seconds: float, id_: str = "1", subject: str = ""
) -> TodoUpdated:
    return TodoUpdated(at=at(seconds), todo_id=id_, state=state, subject=subject)


def listed(seconds: float, *items: tuple[str, TodoState]) -> TodosReplaced:
    return TodosReplaced(at=at(seconds), items=items)


def test_the_time_in_each_state_of_a_todo_is_measured() -> None:
    todos = Todos()
    lines = [
        todos.add_seen(todo()),
        todos.add_seen(todo(seconds=1)),
        todos.update(moved(BEGUN, 2)),
        todos.update(moved(BEGUN, 3)),
        todos.update(moved(DONE, 7)),
    ]

    assert lines == [True, False, True, False, True]
    assert todos.document(at(100)) == [
        {
            "number": 1,
            "subject": "Look",
            "state": "completed",
            "createdAt": "2030-01-31T12:00:00.000Z",
            "startedAt": "2030-01-31T12:00:02.000Z",
            "completedAt": "2030-01-31T12:00:07.000Z",
            "pendingMs": 2000,
            "inProgressMs": 5000,
        }
    ]


def test_an_item_that_is_under_way_grows_with_the_clock() -> None:
    todos = Todos()
    todos.add_seen(todo())
    todos.update(moved(BEGUN, 2))

    spent = [todos.document(at(seconds))[0]["inProgressMs"] for seconds in (2, 5, 1)]

    # A clock that is set back takes nothing away.
    assert spent == [0, 3000, 0]


def test_an_item_that_is_taken_up_again_is_not_completed() -> None:
    todos = Todos()
    todos.add_seen(todo())
    for state, seconds in ((BEGUN, 1), (DONE, 2), (BEGUN, 10), (DONE, 13)):
        todos.update(moved(state, seconds))

    (item,) = todos.document(at(20))

    assert (item["inProgressMs"], item["completedAt"]) == (4000, "2030-01-31T12:00:13.000Z")
    assert item["startedAt"] == "2030-01-31T12:00:01.000Z"


def test_a_list_that_was_read_late_takes_no_item_back() -> None:
    todos = Todos()
    todos.update(moved(DONE, 1))

    lines = todos.add_seen(todo(seconds=2, state=BEGUN))

    (item,) = todos.document(at(3))
    assert (lines, item["state"], item["subject"]) == (False, "completed", "Look")


def test_an_item_of_an_earlier_attempt_is_known_from_its_first_move() -> None:
    todos = Todos()

    lines = [
        todos.update(moved(None, 1, "7")),
        todos.update(moved(None, 2, "7", "Write")),
        todos.update(moved(BEGUN, 3, "8", "Send")),
    ]

    assert lines == [True, False, True]
    assert [(entry["subject"], entry["state"]) for entry in todos.document(at(4))] == [
        ("Write", "pending"),
        ("Send", "in_progress"),
    ]


def test_a_replaced_todo_list_moves_adds_and_deletes_items() -> None:
    todos = Todos()
    lines = [
        todos.replace_all(listed(0, ("a", BEGUN), ("b", PENDING), ("b", PENDING))),
        todos.replace_all(listed(0, ("a", BEGUN), ("b", PENDING), ("b", PENDING))),
        todos.replace_all(listed(4, ("a", DONE), ("b", BEGUN), ("c", PENDING))),
        todos.replace_all(listed(5, ("a", DONE), ("b", BEGUN))),
    ]

    assert lines == [True, False, True, True]
    assert [(entry["subject"], entry["state"]) for entry in todos.document(at(9))] == [
        ("a", "completed"),
        ("b", "in_progress"),
        ("b", "deleted"),
        ("c", "deleted"),
    ]
    assert todos.progress == (1, 2)


def test_more_items_than_are_kept_are_counted() -> None:
    todos = Todos()

    lines = [todos.add_seen(todo(str(number))) for number in range(MAX_TODOS + 2)]

    assert (lines.count(True), todos.omitted) == (MAX_TODOS, 2)
    assert todos.get(str(MAX_TODOS)) is None


@pytest.mark.parametrize("text", ["the\n password=hunter2abc", "x" * 1000])
def test_the_subject_of_a_todo_is_one_short_line(text: str) -> None:
    todos = Todos()
    todos.add_seen(todo(subject=text))

    subject = todos.document(at(1))[0]["subject"]

    assert len(subject) <= 200
    assert "\n" not in subject
    assert "hunter2abc" not in subject
