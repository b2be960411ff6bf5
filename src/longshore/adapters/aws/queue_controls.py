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
``paused_queues``          1               likewise, and while it waits 86,400 reads a
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

from longshore.adapters.aws.attributes import Item, number_attribute, string_attribute
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import NOT_EXISTS, ConfigTable, config_key, kind_of, new_token
from longshore.adapters.shared import codec
from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end
from longshore.ports.clock import Clock

_POLL_INTERVAL_S = 1.0
_PAUSED_KIND = kind_of("paused")
_HOLD_PREFIX = "held#"  # before the name of a queue: none can be called so
_ENDED_CONDITION = "(attribute_exists(#end_token) AND #token <> :token)"


class DynamoQueueControls:
    """See ``ports.configuration.QueueControls``."""

    def __init__(
        self,
        aws: AwsClient,
        names: Names,
        clock: Clock,
        *,
        poll_interval_s: float = _POLL_INTERVAL_S,
    ) -> None:
        self._config_table = ConfigTable(aws, names)
        self._clock = clock
        self._shared_poll = _SharedPoll(self._paused_names, interval_s=poll_interval_s)

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        mark = string_attribute(new_token())
        item: Item = {
            **config_key(_PAUSED_KIND, name),
            "paused_by": string_attribute(by),
            "at_us": number_attribute(codec.to_us(now)),
            "token": mark,
        }
        if reason is not None:
            item["reason"] = string_attribute(reason)
        there = await self._config_table.put(
            item,
            condition=f"{NOT_EXISTS} OR {_ENDED_CONDITION}",
            values={":token": mark},
        )
        self._shared_poll.poll_now()
        return _decode(item if there is None else there)

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        until = capped_hold_end(until, now)
        values: Item = {
            ":by": string_attribute(by),
            ":reason": string_attribute(reason),
            ":at": number_attribute(codec.to_us(now)),
            ":until": number_attribute(codec.to_us(until)),
            ":latest": number_attribute(codec.to_us(now + MAX_HOLD)),
            ":token": string_attribute(new_token()),
        }
        there = await self._config_table.update(
            _PAUSED_KIND,
            _HOLD_PREFIX + name,
            "SET #paused_by = :by, #reason = :reason, #at_us = :at, #until_us = :until,"
            " #token = :token REMOVE #end_token",
            condition=(
                f"{NOT_EXISTS} OR #until_us < :until OR #until_us > :latest OR {_ENDED_CONDITION}"
            ),
            values=values,
        )
        self._shared_poll.poll_now()
        if there is not None:
            return _decode(there)
        return QueuePause(name=name, by=by, reason=reason, at=now, until=until)

    async def resume(self, name: str) -> QueuePause | None:
        # The hold first: who dies in between, or is cut off, finds the pause and resumes again.
        held = await self._end(_HOLD_PREFIX + name)
        paused = await self._end(name)
        return paused or held

    async def _end(self, name: str) -> QueuePause | None:
        """End a pause or a hold; None if there is none, or somebody else has ended it."""
        held = await self._config_table.get(_PAUSED_KIND, name)
        if held is None or not self._is_active(held):
            return None
        ender = string_attribute(new_token())
        there = await self._config_table.update(
            _PAUSED_KIND,
            name,
            "SET #end_token = :end_token",
            condition="#token = :held AND attribute_not_exists(#end_token)",
            values={":held": held["token"], ":end_token": ender},
        )
        self._shared_poll.poll_now()
        return _decode(held) if there is None or there.get("end_token") == ender else None

    async def list_pauses(self) -> list[QueuePause]:
        items = await self._config_table.list_kind(_PAUSED_KIND)
        found = [_decode(item) for item in items if self._is_active(item)]
        return sorted(found, key=lambda paused: (paused.name, paused.until is not None))

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        known = None if changed_from is None else frozenset(changed_from)
        # A look of its own: one that is under way may have begun before this call.
        found = frozenset(queues) & await self._paused_names()
        while found == known:
            found = frozenset(queues) & await self._shared_poll.next()
        return found

    async def _paused_names(self) -> frozenset[str]:
        return frozenset(paused.name for paused in await self.list_pauses())

    def _is_active(self, item: Item) -> bool:
        return "end_token" not in item and _decode(item).is_active(self._clock.now())


class _SharedPoll:
    """One look at a time for all who wait, as long as anybody does."""

    def __init__(self, read: Callable[[], Awaitable[frozenset[str]]], *, interval_s: float) -> None:
        self._read = read
        self._interval_s = interval_s
        self._poll_requested = asyncio.Event()
        self._next_poll: asyncio.Task[frozenset[str]] | None = None
        self._waiters = 0

    def poll_now(self) -> None:
        """There is something to see: do not wait for the next second."""
        self._poll_requested.set()

    async def next(self) -> frozenset[str]:
        """What the next look finds."""
        if self._next_poll is None or self._next_poll.done():
            self._next_poll = asyncio.create_task(self._poll_after_interval())
        self._waiters += 1
        try:
            # One that is called off must not take the look from the others.
            return await asyncio.shield(self._next_poll)
        finally:
            self._waiters -= 1
            if not self._waiters:
                self._next_poll.cancel()

    async def _poll_after_interval(self) -> frozenset[str]:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._poll_requested.wait()
        # Before the look: what comes while it is under way needs another.
        self._poll_requested.clear()
        return await self._read()


def _decode(item: Item) -> QueuePause:
    return QueuePause(
        name=item["name"]["S"].removeprefix(_HOLD_PREFIX),
        by=item["paused_by"]["S"],
        reason=item["reason"]["S"] if "reason" in item else None,
        at=codec.from_us(int(item["at_us"]["N"])),
        until=codec.from_us(int(item["until_us"]["N"])) if "until_us" in item else None,
    )
