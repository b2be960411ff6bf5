"""A task under an attempt, and what comes of a command."""

from datetime import datetime
from typing import Any

from longshore.core.events import types as e
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.tasks.task import TaskChange, apply
from tests.factories import (
    LASTS,
    MARGIN,
    NOON,
    SECOND,
    a_cancel_request,
    a_spec,
    a_task,
    changed,
    refused,
)

LATER = NOON + 10 * SECOND
OVER = NOON + LASTS + MARGIN
BEFORE = e.Usage(turns=1, cost_usd=0.5)


def change_of(row: TaskRow, command: c.Command, *, now: datetime = LATER) -> TaskChange:
    return changed(apply(row, command, now=now, change_id="new"))


def refusal_of(row: TaskRow, command: c.Command, *, now: datetime = LATER) -> Refusal:
    return refused(apply(row, command, now=now, change_id="new"))


def running(attempts_used: int = 0, *, cancel: bool = False, **spec: Any) -> TaskRow:
    """A task under its last attempt so far, with fence 3."""
    return a_task(
        state=TaskState.PROCESSING,
        attempt=3,
        attempts_used=attempts_used,
        spec=a_spec(**spec),
        usage=BEFORE,
        cancel=a_cancel_request() if cancel else None,
    )
