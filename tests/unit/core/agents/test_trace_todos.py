"""The agent's own list, item by item or written anew, and the time in each state."""

import pytest

from longshore.core.agents.trace import MAX_TODOS, StepTrace, TodoState
from tests.unit.core.agents.trace_samples import NOON, Report, at, report

BEGUN = TodoState.IN_PROGRESS
DONE = TodoState.COMPLETED


@pytest.fixture
def trace() -> StepTrace:
    return StepTrace("review", started_at=NOON)


def todo(id_: str = "1", subject: str = "Look", seconds: float = 0, **more_: TodoState) -> Report:
    return report("todo_seen", at=at(seconds), todo_id=id_, subject=subject, **more_)


def moved(state: TodoState | None, seconds: float, id_: str = "1", subject: str = "") -> Report:
    return report("todo_updated", at=at(seconds), todo_id=id_, state=state, subject=subject)


def test_the_time_in_each_state_of_a_todo_is_measured(trace: StepTrace) -> None:
    lines = [
        todo()(trace),
        todo(seconds=1)(trace),
        moved(BEGUN, 2)(trace),
        moved(BEGUN, 3)(trace),
        moved(DONE, 7)(trace),
    ]

    assert [line is not None for line in lines] == [True, False, True, False, True]
    assert trace.document(at(100))["todos"] == [
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


def test_an_item_that_is_under_way_grows_with_the_clock(trace: StepTrace) -> None:
    todo()(trace)
    moved(BEGUN, 2)(trace)

    spent = [trace.document(at(seconds))["todos"][0]["inProgressMs"] for seconds in (2, 5, 1)]

    # A clock that is set back takes nothing away.
    assert spent == [0, 3000, 0]


def test_an_item_that_is_taken_up_again_is_not_completed(trace: StepTrace) -> None:
    todo()(trace)
    for state, seconds in ((BEGUN, 1), (DONE, 2), (BEGUN, 10), (DONE, 13)):
        moved(state, seconds)(trace)

    (item,) = trace.document(at(20))["todos"]

    assert (item["inProgressMs"], item["completedAt"]) == (4000, "2030-01-31T12:00:13.000Z")
    assert item["startedAt"] == "2030-01-31T12:00:01.000Z"


def test_a_list_that_was_read_late_takes_no_item_back(trace: StepTrace) -> None:
    moved(DONE, 1)(trace)

    lines = todo(seconds=2, state=BEGUN)(trace)

    (item,) = trace.document(at(3))["todos"]
    assert (lines, item["state"], item["subject"]) == (None, "completed", "Look")


def test_an_item_of_an_earlier_attempt_is_known_from_its_first_move(trace: StepTrace) -> None:

    lines = [
        moved(None, 1, "7")(trace),
        moved(None, 2, "7", "Write")(trace),
        moved(BEGUN, 3, "8", "Send")(trace),
    ]

    assert [line is not None for line in lines] == [True, False, True]
    assert [(entry["subject"], entry["state"]) for entry in trace.document(at(4))["todos"]] == [
        ("Write", "pending"),
        ("Send", "in_progress"),
    ]


def test_more_items_than_are_kept_are_counted(trace: StepTrace) -> None:
    lines = [todo(str(number))(trace) for number in range(MAX_TODOS + 2)]
    after = moved(BEGUN, 1, str(MAX_TODOS + 1))(trace)

    document = trace.document(at(2))
    assert (lines.count(None), len(document["todos"])) == (0, MAX_TODOS)
    assert (document["leftOut"], after is None) == ({"todos": 2}, False)


@pytest.mark.parametrize("text", ["the\n password=hunter2abc", "x" * 1000])
def test_the_subject_of_a_todo_is_one_short_line(trace: StepTrace, text: str) -> None:
    todo(subject=text)(trace)

    subject = trace.document(at(1))["todos"][0]["subject"]

    assert len(subject) <= 200
    assert "\n" not in subject
    assert "hunter2abc" not in subject
