"""Queues."""

from __future__ import annotations

from pydantic import Field

from longshore.core.limits import REASON_LIMIT_CHARACTERS
from longshore.interfaces.rest.schemas.base import Asked, Moment, Shape


class PausedQueueDocument(Shape):
    """A queue of which nothing is begun."""

    name: str
    by: str = Field(
        description="Who paused it: a key, a person or, of a hold, a worker; by its name."
    )
    reason: str | None
    at: Moment
    until: Moment | None = Field(
        description="When a hold ends by itself; null: it is paused until somebody resumes it."
    )


class PausedQueueList(Shape):
    """Every pause and every hold, by the name of the queue."""

    paused: list[PausedQueueDocument]


class PauseDocument(Asked):
    """Why a queue is to be paused."""

    reason: str | None = Field(default=None, max_length=REASON_LIMIT_CHARACTERS)
