"""Which queues are paused or held: by whom, since when, until when, and why."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

LONGEST_HOLD: Final = timedelta(hours=1)
"""Nobody who is asked to wait is believed beyond this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedQueue:
    """A queue of which no worker begins anything."""

    name: str
    by: str
    reason: str | None
    at: datetime
    until: datetime | None = None  # when a hold ends by itself; a pause does not

    def holds(self, now: datetime) -> bool:
        """Whether it is not over by itself.

        A hold that would last longer than any may was kept by a clock that was wrong, or has been
        set back since: it is over, too.
        """
        return self.until is None or timedelta(0) < self.left(now) <= LONGEST_HOLD

    def left(self, now: datetime) -> timedelta:
        """How long it lasts yet, if nobody ends it."""
        return timedelta.max if self.until is None else self.until - now


def end_of_hold(until: datetime, now: datetime) -> datetime:
    """When a hold ends that is to last until then: no later than the longest."""
    return min(until, now + LONGEST_HOLD)


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

    A hold is a pause that ends by itself: a service that all tasks of a queue need has asked to be
    left alone for a while. It is not a person's: it stands beside the pause of one, and neither
    ends the other.
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

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> PausedQueue:
        """Until then nothing of this queue is begun, but no longer than ``LONGEST_HOLD``.

        Answers with the hold that stands. Of several the one that lasts longest counts: a shorter
        one changes nothing, nor does one that lasts as long. It is a hint: one that a power loss
        forgets costs a question too many, so nobody waits until it is on disk.
        """
        ...

    async def resume(self, name: str) -> PausedQueue | None:
        """The queue is served again; answers with the pause that this has ended, None if none.

        A hold is ended, too; it is answered with if there was no pause. Of those who resume one
        queue at once, one is told that it did. On disk when this returns.
        """
        ...

    async def paused(self) -> list[PausedQueue]:
        """Every pause and every hold that stands, by the name of the queue; the pause first."""
        ...

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        """Which of ``queues`` are paused or held now.

        With ``other_than``, returns as soon as they are others than these: at once, if they are so
        already, so that nothing is missed between two calls; and however long that takes. The end
        of a hold is told, too, although nobody does anything then.
        """
        ...
