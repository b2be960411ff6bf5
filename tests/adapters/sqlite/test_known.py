"""What is remembered of tasks is bounded and never of those that have ended."""

from longshore.adapters.sqlite.known import KnownTasks
from longshore.core.states import TaskState
from tests.factories import a_spec, a_task


def test_the_row_that_was_kept_longest_ago_makes_room() -> None:
    known = KnownTasks(limit=2)
    first, second, third = (a_task(spec=a_spec(key)) for key in ("a", "b", "c"))
    for row in (first, second, first, third):
        known.keep(row)

    assert known.get(first.id) is first
    assert known.get(second.id) is None
    assert known.get(third.id) is third


def test_a_task_that_has_ended_is_forgotten() -> None:
    known = KnownTasks()
    known.keep(a_task(state=TaskState.PROCESSING))

    known.keep(a_task(state=TaskState.COMPLETED))

    assert known.get(a_task().id) is None
