"""Which queues are paused: by whom, since when, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedQueue:
    """A queue of which no worker begins anything."""

    name: str
    by: str
    reason: str | None
    at: datetime


class Queues(Protocol):
    """The switches of the queues.

    A pause holds for everybody, not for a tenant: a queue is a part of the installation as its
    workers are, tasks of all tenants lie on it, and whoever takes the next one does not know whose
    it is before it has it. So to pause is for those who run the installation, not for those who
    use it, and the words that come with a pause may be read by all whose tasks it holds up. Nothing
    else is told here, so that no tenant learns anything of another.

    A pause is a switch beside the queue and not a part of it: messages are sent, kept and could be
    received as ever, and workers simply do not ask. A message that nobody receives does not wear
    out, however long the pause. What is running goes on, and is renewed and reported as ever.
    """

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> PausedQueue:
        """From now on nothing of this queue is begun; every worker knows within about a second.

        Answers with the pause that holds. Of those who pause one queue the first counts: whoever
        comes later, or asks again because the answer was lost, is told of that one and changes
        nothing. A queue that nothing was ever sent to can be paused. What was answered is on disk.
        """
        ...

    async def resume(self, name: str) -> PausedQueue | None:
        """The queue is served again; answers with the pause that this has ended, None if none.

        Of those who resume one queue at once, one is told that it did. On disk when this returns.
        """
        ...

    async def paused(self) -> list[PausedQueue]:
        """Every pause that holds, by the name of the queue."""
        ...

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        """Which of ``queues`` are paused now.

        With ``other_than``, returns as soon as they are others than these: at once, if they are so
        already, so that nothing is missed between two calls; and however long that takes.
        """
        ...
