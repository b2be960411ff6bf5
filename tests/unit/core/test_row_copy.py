"""A changed copy is what the standard library would have made."""

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from longshore.core.records import copy_with
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from tests.factories import NOON, a_job, a_task

ROWS = [a_task(state=state) for state in TaskState] + [a_job(failed=[0], blocked=[1])]
FIELDS = [(kind, field.name) for kind in (TaskRow, JobRow) for field in fields(kind)]


@pytest.mark.parametrize(
    ("kind", "field"), FIELDS, ids=[f"{kind.__name__}-{field}" for kind, field in FIELDS]
)
def test_one_field_is_changed_and_all_others_stay(kind: type, field: str) -> None:
    marker = object()
    for row in (row for row in ROWS if isinstance(row, kind)):
        copy: Any = copy_with(row, {field: marker})

        assert type(copy) is kind
        assert copy == replace(row, **{field: marker})
        assert getattr(copy, field) is marker


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.state.value)
def test_without_changes_it_is_an_equal_row_of_its_own(row: Any) -> None:
    copy = copy_with(row, {})

    assert copy == row
    assert copy is not row


def test_the_row_itself_is_left_as_it_was() -> None:
    row = a_task()
    before = replace(row)

    changed = copy_with(row, {"version": 9, "updated_at": NOON + timedelta(seconds=1)})

    assert row == before
    assert changed.version == 9


def test_a_field_that_the_row_does_not_have_is_an_error() -> None:
    with pytest.raises(KeyError):
        copy_with(a_task(), {"vesrion": 9})
