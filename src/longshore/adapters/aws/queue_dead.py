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
from longshore.adapters.aws.queue_batches import BATCH
from longshore.adapters.aws.queue_calls import Sqs
from longshore.adapters.aws.queue_messages import (
    ATTRIBUTES,
    SYSTEM_ATTRIBUTES,
    Lane,
    Received,
    received,
)
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.states import Priority
from longshore.ports.clock import Clock
from longshore.ports.queue import Message

_READING_S = 30
# A look asks some of SQS's servers, so one that finds nothing says little.
_EMPTY_LOOKS = 3
_QUEUES_KNOWN_FOR = timedelta(minutes=1)


class DeadLetters:
    """What was received too often, of every queue of a stage."""

    def __init__(self, sqs: Sqs, names: Names, clock: Clock) -> None:
        self._sqs = sqs
        self._names = names
        self._clock = clock
        self._reading = asyncio.Lock()
        self._lanes: list[Lane] = []
        self._lanes_known_until = timedelta(0)
        self._seen_on: dict[str, Lane] = {}

    async def read(self, queue: str | None, *, limit: int) -> list[Message]:
        """See ``ports.queue.TaskQueue.dead_letters``."""
        async with self._reading:
            lanes = await self._of(queue)
            found = await asyncio.gather(*(self._some(lane, limit) for lane in lanes))
        letters = sorted((one for part in found for one in part), key=lambda one: one.sent_us)
        self._seen_on = {one.id: one.lane for one in letters}
        return [replace(one.message, receipt="", receives=RECEIVE_LIMIT) for one in letters[:limit]]

    async def drop(self, message_id: str) -> bool:
        """See ``ports.queue.TaskQueue.drop_dead_letter``."""
        async with self._reading:
            likely = self._seen_on.pop(message_id, None)
            lanes = [lane for lane in await self._of(None) if lane != likely]
            for lane in lanes if likely is None else [likely, *lanes]:
                if await self._drop_from(lane, message_id):
                    return True
        return False

    async def _some(self, lane: Lane, limit: int) -> list[Received]:
        letters: list[Received] = []
        async with aclosing(self._pages(lane, limit)) as pages:
            async for page in pages:
                letters += page
        return letters

    async def _drop_from(self, lane: Lane, message_id: str) -> bool:
        async with aclosing(self._pages(lane, None)) as pages:
            async for page in pages:
                if wanted := [one for one in page if one.id == message_id]:
                    codes = await self._sqs.delete(self._names.dead(*lane), wanted)
                    return None in codes
        return False

    async def _pages(self, lane: Lane, limit: int | None) -> AsyncGenerator[list[Received], None]:
        """The letters of a lane, ten at a time; all are visible again at the end."""
        name = self._names.dead(*lane)
        total = (await self._sqs.counts(name)).visible
        wanted = total if limit is None else min(total, limit)
        handles: dict[str, Received] = {}
        empty = 0
        try:
            while len(handles) < wanted and empty < _EMPTY_LOOKS:
                size = min(BATCH, wanted - len(handles))
                page = await self._page(lane, name, size)
                fresh = [one for key, one in page.items() if key not in handles]
                handles |= page
                empty = 0 if fresh else empty + 1
                if fresh:
                    yield fresh
        finally:
            # If this fails they come back by themselves; one that was dropped is gone.
            await self._sqs.hide(name, [(one, 0) for one in handles.values()])

    async def _page(self, lane: Lane, name: str, size: int) -> dict[str, Received]:
        answer = await self._sqs.call(
            name,
            "receive_message",
            MaxNumberOfMessages=size,
            VisibilityTimeout=_READING_S,
            WaitTimeSeconds=0,
            MessageAttributeNames=[ATTRIBUTES],
            MessageSystemAttributeNames=list(SYSTEM_ATTRIBUTES),
        )
        now = self._clock.now()
        return {raw["MessageId"]: received(raw, lane, now) for raw in answer.get("Messages", ())}

    async def _of(self, queue: str | None) -> Sequence[Lane]:
        if queue is not None:
            return [(queue, priority) for priority in Priority]
        if self._lanes_known_until <= self._clock.elapsed():
            self._lanes = await self._everywhere()
            self._lanes_known_until = self._clock.elapsed() + _QUEUES_KNOWN_FOR
        return self._lanes

    async def _everywhere(self) -> list[Lane]:
        """Every queue of the stage, as far as names tell."""
        prefix = self._names.queue("", Priority.HIGH).removesuffix("-high")
        found = []
        for name in await self._sqs.names(prefix):
            for priority in Priority:
                end = self._names.dead("", priority).removeprefix(prefix)
                queue = name.removeprefix(prefix).removesuffix(end)
                if self._names.dead(queue, priority) == name:
                    found.append((queue, priority))
        return found
