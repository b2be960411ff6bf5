"""What a decision is: a change to commit, or a refusal that changes nothing.

A ``Change`` holds the row as it will be, the version it was decided from, and the events that tell
of it. The store commits all of it in one step or nothing of it. ``effects`` are doorbells: losing
one costs time, never correctness, because the sweeper finds what was not rung.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Generic, TypeVar

from longshore.core.events.event import Event
from longshore.core.states import Priority
from longshore.core.valuing import value


@dataclass(frozen=True, slots=True)
class Ring:
    """Put a message "look at this task" on its queue, to be seen not before ``at``."""

    task_id: str
    queue: str
    priority: Priority
    at: datetime


@dataclass(frozen=True, slots=True)
class Nudge:
    """Tell the worker that holds a task to look at its row now."""

    worker_id: str
    task_id: str


Effect = Ring | Nudge

RowT = TypeVar("RowT")


@value
class Change(Generic[RowT]):
    """A decision that waits to be committed."""

    row: RowT
    expected_version: int  # 0: the row must not exist yet
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    promised: bool = True  # must be on disk before anybody is told; see DESIGN's fsync rule


class Reason(Enum):
    """Why a command was refused."""

    UNKNOWN = "there is no such task or job"
    ENDED = "it has ended"
    LEASE_HELD = "another worker holds its lease"
    LEASE_LOST = "the lease has ended or was taken over"
    NOT_DUE = "it is not due yet"
    WRONG_STATE = "its state does not allow this"
    NOTHING_TO_DO = "nothing would change"
    LIMIT_REACHED = "a limit is reached"
    STALE_ROUND = "a newer round has begun"


@value
class Refusal:
    """Nothing was changed, and why."""

    reason: Reason
    detail: str
    until: datetime | None = None  # when asking again may help
