"""Paused and held queues in DynamoDB: an item for each queue that was ever paused, and held.

A pause that is over stays, marked as ended, until the queue is paused anew: so whoever has lost the
answer to a pause or a resume and asks again can see that it was its own, and neither pauses a queue
that was resumed since nor resumes one that was paused since. Holds are kept likewise, and beside
the pauses, so that one look finds both. Their ends are looked for as everything else is, so a
worker may hear of one up to a second late.

Who waits in this process hears of its own pauses at once. Nothing tells of those of others, so
while somebody waits the pauses are read every second, once for all who wait. That is real time and
not the clock's: it is how long something far away stays unheard, and nothing is decided by it.

=====================  ==============  =============================================
call                   requests        units
=====================  ==============  =============================================
``pause``, ``hold``    1               1 write
``resume``             2, and 1 for    2 reads, and 1 write for each that it ends
                       what it ends
``paused``             1               1 read (for each 4 KB, some thirty queues)
``paused_of``          1               likewise, and while it waits 86,400 reads a
                                       day and process, however many wait
=====================  ==============  =============================================

If the answer to a resume is lost and the queue is paused anew before it is asked for again, nobody
is told of the end of the first pause. A look that fails is told to all who wait: ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from datetime import datetime

from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.house import NOT_THERE, House, Item, kind_of, new_mark, number, text
from longshore.adapters.aws.names import Names
from longshore.adapters.shared import codec
from longshore.ports.clock import Clock
from longshore.ports.queues import LONGEST_HOLD, PausedQueue, end_of_hold

_LOOK_EVERY_S = 1.0
_KIND = kind_of("paused")
_HELD = "held#"  # before the name of a queue: none can be called so
_ENDED_SINCE = "(attribute_exists(#ender) AND #mark <> :mark)"


class DynamoQueues:
    """See ``ports.queues.Queues``."""

    def __init__(
        self, aws: Aws, names: Names, clock: Clock, *, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._house = House(aws, names)
        self._clock = clock
        self._looks = _Looks(self._names, every_s=look_every_s)

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> PausedQueue:
        mark = text(new_mark())
        item: Item = {
            "kind": text(_KIND),
            "name": text(name),
            "paused_by": text(by),
            "at_us": number(codec.to_us(now)),
            "mark": mark,
        }
        if reason is not None:
            item["reason"] = text(reason)
        there = await self._house.put(
            item,
            condition=f"{NOT_THERE} OR {_ENDED_SINCE}",
            values={":mark": mark},
        )
        self._looks.look_now()
        return _paused(item if there is None else there)

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> PausedQueue:
        until = end_of_hold(until, now)
        values: Item = {
            ":by": text(by),
            ":reason": text(reason),
            ":at": number(codec.to_us(now)),
            ":until": number(codec.to_us(until)),
            ":latest": number(codec.to_us(now + LONGEST_HOLD)),
            ":mark": text(new_mark()),
        }
        there = await self._house.update(
            _KIND,
            _HELD + name,
            "SET #paused_by = :by, #reason = :reason, #at_us = :at, #until_us = :until,"
            " #mark = :mark REMOVE #ender",
            condition=f"{NOT_THERE} OR #until_us < :until OR #until_us > :latest OR {_ENDED_SINCE}",
            values=values,
        )
        self._looks.look_now()
        if there is not None:
            return _paused(there)
        return PausedQueue(name=name, by=by, reason=reason, at=now, until=until)

    async def resume(self, name: str) -> PausedQueue | None:
        # The hold first: who dies in between, or is cut off, finds the pause and resumes again.
        held = await self._ended(_HELD + name)
        paused = await self._ended(name)
        return paused or held

    async def _ended(self, name: str) -> PausedQueue | None:
        """End a pause or a hold; None if there is none, or somebody else has ended it."""
        held = await self._house.get(_KIND, name)
        if held is None or not self._holds(held):
            return None
        ender = text(new_mark())
        there = await self._house.update(
            _KIND,
            name,
            "SET #ender = :ender",
            condition="#mark = :held AND attribute_not_exists(#ender)",
            values={":held": held["mark"], ":ender": ender},
        )
        self._looks.look_now()
        return _paused(held) if there is None or there.get("ender") == ender else None

    async def paused(self) -> list[PausedQueue]:
        items = await self._house.all_of(_KIND)
        found = [_paused(item) for item in items if self._holds(item)]
        return sorted(found, key=lambda paused: (paused.name, paused.until is not None))

    async def paused_of(
        self, queues: Collection[str], *, other_than: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if other_than is None else frozenset(other_than)
        # A look of its own: one that is under way may have begun before this call.
        found = frozenset(queues) & await self._names()
        while found == known:
            found = frozenset(queues) & await self._looks.next()
        return found

    async def _names(self) -> frozenset[str]:
        return frozenset(paused.name for paused in await self.paused())

    def _holds(self, item: Item) -> bool:
        return "ender" not in item and _paused(item).holds(self._clock.now())


class _Looks:
    """One look at a time for all who wait, as long as anybody does."""

    def __init__(self, look: Callable[[], Awaitable[frozenset[str]]], *, every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._now = asyncio.Event()
        self._coming: asyncio.Task[frozenset[str]] | None = None
        self._waiting = 0

    def look_now(self) -> None:
        """There is something to see: do not wait for the next second."""
        self._now.set()

    async def next(self) -> frozenset[str]:
        """What the next look finds."""
        if self._coming is None or self._coming.done():
            self._coming = asyncio.create_task(self._after_a_while())
        self._waiting += 1
        try:
            # One that is called off must not take the look from the others.
            return await asyncio.shield(self._coming)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._coming.cancel()

    async def _after_a_while(self) -> frozenset[str]:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._every_s):
                await self._now.wait()
        # Before the look: what comes while it is under way needs another.
        self._now.clear()
        return await self._look()


def _paused(item: Item) -> PausedQueue:
    return PausedQueue(
        name=item["name"]["S"].removeprefix(_HELD),
        by=item["paused_by"]["S"],
        reason=item["reason"]["S"] if "reason" in item else None,
        at=codec.from_us(int(item["at_us"]["N"])),
        until=codec.from_us(int(item["until_us"]["N"])) if "until_us" in item else None,
    )
