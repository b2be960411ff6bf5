"""Paused and held queues in DynamoDB: one item for each pause and one for each hold.

A pause that has ended stays as an item, with an end token, until the queue is paused again. So a
caller that repeats a pause or a resume after a lost answer recognises its own write, and neither
pauses a queue that was resumed since nor resumes one that was paused since. Holds are stored the
same way, beside the pauses, so that one query returns both. The end of a hold is seen by polling,
up to a second late.

A waiter of this process sees its own changes at once. DynamoDB sends no notification of changes by
others, so a waiter reads the pauses every second; a process has one, its worker. That is real time
and not the clock's, because nothing is decided by it.

=====================  ==============  =============================================
call                   requests        units
=====================  ==============  =============================================
``pause``, ``hold``    1               1 write
``resume``             2, and 1 for    2 reads, and 1 write for each end
                       each end
``list_pauses``        1               1 read (for each 4 KB, some thirty queues)
``paused_queues``      1               1 read, and while it waits 86,400 reads a
                                       day
=====================  ==============  =============================================

If the answer to a resume is lost and the queue is paused again before the resume is repeated, the
end of the first pause is not returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime

from longshore.adapters.aws.attributes import Item, number_attribute, string_attribute
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.tables import NOT_EXISTS, Query, Table, config_key, kind_of, new_token
from longshore.adapters.shared import codec
from longshore.core.queues import MAX_HOLD, QueuePause, capped_hold_end
from longshore.ports.clock import Clock

_POLL_INTERVAL_S = 1.0
_PAUSED_KIND = kind_of("paused")
_HOLD_PREFIX = "held#"  # before the name of a queue; no queue name contains it


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
        self._config_table = Table(aws, names.config)
        self._clock = clock
        self._poll_interval_s = poll_interval_s
        self._changed = asyncio.Event()  # set by the next change of this process

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        return await self._store(name, QueuePause(name=name, by=by, reason=reason, at=now))

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        until = capped_hold_end(until, now)
        return await self._store(
            _HOLD_PREFIX + name,
            QueuePause(name=name, by=by, reason=reason, at=now, until=until),
            replaces="#until_us < :until OR #until_us > :latest",
            values={
                ":until": number_attribute(codec.to_us(until)),
                ":latest": number_attribute(codec.to_us(now + MAX_HOLD)),
            },
        )

    async def _store(
        self, name: str, pause: QueuePause, *, replaces: str = "", values: Item | None = None
    ) -> QueuePause:
        """Store a pause. Returns the existing pause if that has not ended."""
        token = string_attribute(new_token())
        item = config_key(_PAUSED_KIND, name) | {
            "body": string_attribute(codec.to_json(pause)),
            "token": token,
        }
        if pause.until is not None:
            item["until_us"] = number_attribute(codec.to_us(pause.until))
        ended = "(attribute_exists(#end_token) AND #token <> :token)"
        existing = await self._config_table.put(
            item,
            condition=" OR ".join(filter(None, (NOT_EXISTS, ended, replaces))),
            values={":token": token, **(values or {})},
        )
        self._notify()
        return pause if existing is None else _decode(existing)

    async def resume(self, name: str) -> QueuePause | None:
        # The hold first: after a crash in between, the operator sees the pause and resumes again.
        hold = await self._end(_HOLD_PREFIX + name)
        pause = await self._end(name)
        return pause or hold

    async def _end(self, name: str) -> QueuePause | None:
        """End a pause or a hold. Returns None if there is none, or another caller has ended it."""
        key = config_key(_PAUSED_KIND, name)
        item = await self._config_table.get(key)
        if item is None or not self._is_active(item):
            return None
        end_token = string_attribute(new_token())
        existing = await self._config_table.update(
            key,
            "SET #end_token = :end_token",
            condition="#token = :current AND attribute_not_exists(#end_token)",
            values={":current": item["token"], ":end_token": end_token},
        )
        self._notify()
        ended = existing is None or existing.get("end_token") == end_token
        return _decode(item) if ended else None

    async def list_pauses(self) -> list[QueuePause]:
        items = self._config_table.query(Query(partition=("kind", _PAUSED_KIND)))
        pauses = [_decode(item) async for item in items if self._is_active(item)]
        return sorted(pauses, key=lambda paused: (paused.name, paused.until is not None))

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        before = None if changed_from is None else frozenset(changed_from)
        while True:
            changed = self._changed  # before the read: a change during it needs another read
            names = {pause.name for pause in await self.list_pauses()}
            if (paused := frozenset(queues) & names) != before:
                return paused
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await changed.wait()

    def _notify(self) -> None:
        """Let the waiters of this process read again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _is_active(self, item: Item) -> bool:
        return "end_token" not in item and _decode(item).is_active(self._clock.now())


def _decode(item: Item) -> QueuePause:
    return codec.pause_from_json(item["body"]["S"])
