"""Dead letters on SQS: read by receiving them, and made visible again at once.

While somebody reads, others do not see what was handed out, so in one process one reads at a time;
a second process may miss a letter, and sees it the next time. SQS counts reading as receiving, so
its own count says nothing here. How many letters there are, it knows approximately and up to a
minute late: a letter that has just died may be missing from a list.

A list costs one request a dead-letter queue (three a queue), and two for every ten letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta

from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.messages import (
    RECEIVE_ATTRIBUTES,
    Lane,
    ReceivedMessage,
    parse_message,
)
from longshore.adapters.aws.queue.sqs import BATCH_SIZE, SqsClient
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority
from longshore.ports.clock import Clock
from longshore.ports.task_queue import Message

_READ_VISIBILITY_S = 30
# A look asks some of SQS's servers, so one that finds nothing says little.
_EMPTY_RECEIVES = 3
_LANES_CACHED_FOR = timedelta(minutes=1)


class SqsDeadLetters:
    """What was received too often, of every queue of a stage."""

    def __init__(self, sqs: SqsClient, names: Names, clock: Clock) -> None:
        self._sqs = sqs
        self._names = names
        self._clock = clock
        self._read_lock = asyncio.Lock()
        self._lanes: list[Lane] = []
        self._lanes_expire_at = timedelta(0)
        self._lane_by_message: dict[str, Lane] = {}

    async def read(self, queue: str | None, *, limit: int) -> list[Message]:
        """See ``ports.queue.TaskQueue.dead_letters``."""
        async with self._read_lock:
            lanes = await self._lanes_of(queue)
            found = await asyncio.gather(*(self._read_lane(lane, limit) for lane in lanes))
        letters = sorted((one for part in found for one in part), key=lambda one: one.sent_us)
        self._lane_by_message = {one.id: one.lane for one in letters}
        return [
            replace(one.message, receipt="", receive_count=RECEIVE_LIMIT) for one in letters[:limit]
        ]

    async def drop(self, message_id: str) -> bool:
        """See ``ports.queue.TaskQueue.delete_dead_letter``."""
        async with self._read_lock:
            likely = self._lane_by_message.pop(message_id, None)
            lanes = [lane for lane in await self._lanes_of(None) if lane != likely]
            for lane in lanes if likely is None else [likely, *lanes]:
                if await self._drop_from(lane, message_id):
                    return True
        return False

    async def _read_lane(self, lane: Lane, limit: int) -> list[ReceivedMessage]:
        letters: list[ReceivedMessage] = []
        async with aclosing(self._pages(lane, limit)) as pages:
            async for page in pages:
                letters += page
        return letters

    async def _drop_from(self, lane: Lane, message_id: str) -> bool:
        async with aclosing(self._pages(lane, None)) as pages:
            async for page in pages:
                if wanted := [one for one in page if one.id == message_id]:
                    codes = await self._sqs.delete(self._names.dead_letter_queue(*lane), wanted)
                    return None in codes
        return False

    async def _pages(
        self, lane: Lane, limit: int | None
    ) -> AsyncGenerator[list[ReceivedMessage], None]:
        """The letters of a lane, ten at a time; all are visible again at the end."""
        name = self._names.dead_letter_queue(*lane)
        total = (await self._sqs.counts(name)).visible
        wanted = total if limit is None else min(total, limit)
        handles: dict[str, ReceivedMessage] = {}
        empty = 0
        try:
            while len(handles) < wanted and empty < _EMPTY_RECEIVES:
                size = min(BATCH_SIZE, wanted - len(handles))
                page = await self._page(lane, name, size)
                fresh = [one for key, one in page.items() if key not in handles]
                handles |= page
                empty = 0 if fresh else empty + 1
                if fresh:
                    yield fresh
        finally:
            # If this fails they come back by themselves; one that was dropped is gone.
            await self._sqs.hide(name, [(one, 0) for one in handles.values()])

    async def _page(self, lane: Lane, name: str, size: int) -> dict[str, ReceivedMessage]:
        answer = await self._sqs.call(
            name,
            "receive_message",
            MaxNumberOfMessages=size,
            VisibilityTimeout=_READ_VISIBILITY_S,
            WaitTimeSeconds=0,
            **RECEIVE_ATTRIBUTES,
        )
        now = self._clock.now()
        return {
            raw["MessageId"]: parse_message(raw, lane, now) for raw in answer.get("Messages", ())
        }

    async def _lanes_of(self, queue: str | None) -> Sequence[Lane]:
        if queue is not None:
            return [(queue, priority) for priority in Priority]
        if self._lanes_expire_at <= self._clock.elapsed():
            self._lanes = await self._find_lanes()
            self._lanes_expire_at = self._clock.elapsed() + _LANES_CACHED_FOR
        return self._lanes

    async def _find_lanes(self) -> list[Lane]:
        """Every queue of the stage, as far as names tell."""
        prefix = self._names.queue("", Priority.HIGH).removesuffix("-high")
        found = []
        for name in await self._sqs.list_names(prefix):
            for priority in Priority:
                end = self._names.dead_letter_queue("", priority).removeprefix(prefix)
                queue = name.removeprefix(prefix).removesuffix(end)
                if self._names.dead_letter_queue(queue, priority) == name:
                    found.append((queue, priority))
        return found
