"""Values: equal by what they hold, closed to anything else, and frozen for the type checker."""

from pathlib import Path

import pytest
from mypy import api

from longshore.core.records import value


@value
class Point:
    x: int
    y: int = 0


def test_values_are_equal_and_have_one_hash_if_they_hold_the_same() -> None:
    assert Point(x=1) == Point(x=1, y=0)
    assert len({Point(x=1), Point(x=1), Point(x=2)}) == 2


def test_a_value_is_built_by_name_and_has_no_room_for_anything_else() -> None:
    with pytest.raises(TypeError):
        Point(1, 2)  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Point(x=1).z = 3  # type: ignore[attr-defined]


def test_a_change_of_a_value_does_not_pass_the_type_checker(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from longshore.core.events.event import EventContext\n"
        "context = EventContext(origin='worker')\n"
        "context.origin = 'other'\n"
    )

    # With the project's own options and nothing else, so that what `make check` found out is used.
    report, errors, failed = api.run([str(program)])

    assert failed, errors
    assert "read-only" in report
