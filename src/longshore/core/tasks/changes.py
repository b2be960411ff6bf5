"""Decisions: a change to commit, or a refusal that changes nothing.

A ``Change`` has the new row, the version it was decided from, and its events. The store commits all
of it in one step or nothing. ``effects`` are messages and wake-ups: losing one costs time and never
correctness, because the sweeper finds tasks that were not enqueued.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Generic, TypeVar

from longshore.core.events.event import Event
from longshore.core.records import value
from longshore.core.tasks.states import Priority


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Send the task's message to its queue, visible at ``at``."""

    task_id: str
    queue: str
    priority: Priority
    at: datetime


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the worker that holds a task, so that it reads the row now."""

    worker_id: str
    task_id: str


Effect = Enqueue | Wake

RowT = TypeVar("RowT")


@value
class Change(Generic[RowT]):
    """A decision to be committed."""

    row: RowT
    expected_version: int  # 0: the row must not exist yet
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    durable: bool = True  # must be durable before the caller is answered


class RefusalReason(Enum):
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
    """Why nothing was changed."""

    reason: RefusalReason
    detail: str
    until: datetime | None = None  # when a repeated command may succeed
