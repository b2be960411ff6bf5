"""Queues."""

from __future__ import annotations

from pydantic import Field

from longshore.core.limits import REASON_LIMIT_CHARACTERS
from longshore.interfaces.rest.schemas.base import Asked, Moment, Shape


class PausedQueueDocument(Shape):
    """A queue of which nothing is begun."""

    name: str
    by: str = Field(description="Who paused it: the name of a key, or of whoever did it there.")
    reason: str | None
    at: Moment


class PausedQueueList(Shape):
    """Every queue that is paused, by name."""

    paused: list[PausedQueueDocument]


class PauseDocument(Asked):
    """Why a queue is to be paused."""

    reason: str | None = Field(default=None, max_length=REASON_LIMIT_CHARACTERS)
