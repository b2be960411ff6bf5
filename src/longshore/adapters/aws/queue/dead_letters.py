"""Dead letters on SQS: read by receiving them, and made visible again afterwards.

While one process reads, another does not see the same messages, so within a process only one reads
at a time; another process may miss a dead letter until it reads again. SQS counts these reads as
receives, so its count is not used. The number of messages is approximate and up to a minute late: a
new dead letter may be missing from a list.

A list costs one request, one for each dead-letter queue (three per queue), and two for ten letters.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from longshore.adapters.aws.client import AwsResponse
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.sqs import Lane, SqsClient, parse_message
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority
from longshore.ports.task_queue import Message

_READ_VISIBILITY_S = 30
# A receive asks some of SQS's servers, so an empty answer is not conclusive.
_EMPTY_RECEIVES = 3


class SqsDeadLetters:
    """The dead letters of every queue of a stage."""

    def __init__(self, sqs: SqsClient, names: Names) -> None:
        self._sqs = sqs
        self._names = names
        self._read_lock = asyncio.Lock()
        self._lane_by_message: dict[str, Lane] = {}

    async def read(self, queue: str | None, *, limit: int) -> list[Message]:
        """See ``ports.task_queue.TaskQueue.dead_letters``."""
        async with self._read_lock:
            lanes = await self._lanes_of(queue)
            parts = await asyncio.gather(*(self._read_lane(lane, limit) for lane in lanes))
        letters = sorted((m for part in parts for m in part), key=lambda m: m.sent_at)
        self._lane_by_message = {letter.id: (letter.queue, letter.priority) for letter in letters}
        return [
            replace(letter, receipt="", receive_count=RECEIVE_LIMIT) for letter in letters[:limit]
        ]

    async def drop(self, message_id: str) -> bool:
        """See ``ports.task_queue.TaskQueue.delete_dead_letter``."""
        async with self._read_lock:
            likely = self._lane_by_message.pop(message_id, None)
            lanes = [lane for lane in await self._lanes_of(None) if lane != likely]
            for lane in lanes if likely is None else [likely, *lanes]:
                if await self._drop_from(lane, message_id):
                    return True
        return False

    async def _read_lane(self, lane: Lane, limit: int) -> list[Message]:
        async with aclosing(self._pages(lane, limit)) as pages:
            return [parse_message(letter, lane) async for page in pages for letter in page]

    async def _drop_from(self, lane: Lane, message_id: str) -> bool:
        async with aclosing(self._pages(lane, None)) as pages:
            async for page in pages:
                for letter in page:
                    if letter["MessageId"] == message_id:
                        handle = self._names.dead_letter_queue(*lane), letter["ReceiptHandle"]
                        return await self._sqs.delete([handle]) == [None]
        return False

    async def _pages(
        self, lane: Lane, limit: int | None
    ) -> AsyncGenerator[list[AwsResponse], None]:
        """The dead letters of a lane, ten at a time. At the end all are made visible again."""
        name = self._names.dead_letter_queue(*lane)
        total, _ = await self._sqs.counts(name)
        count = total if limit is None else min(total, limit)
        letters: dict[str, AwsResponse] = {}
        empty = 0
        try:
            while len(letters) < count and empty < _EMPTY_RECEIVES:
                left = count - len(letters)
                raw = await self._sqs.receive(name, limit=left, hidden_s=_READ_VISIBILITY_S)
                page = {letter["MessageId"]: letter for letter in raw}
                new = [letter for key, letter in page.items() if key not in letters]
                letters |= page
                empty = 0 if new else empty + 1
                if new:
                    yield new
        finally:
            # If this fails, they become visible again after a while.
            await self._sqs.hide(
                [(name, letter["ReceiptHandle"], 0) for letter in letters.values()]
            )

    async def _lanes_of(self, queue: str | None) -> Sequence[Lane]:
        if queue is not None:
            return [(queue, priority) for priority in Priority]
        names = await self._sqs.list_names(self._names.prefix)
        lanes = (self._names.dead_letter_lane(name) for name in names)
        return [lane for lane in lanes if lane is not None]
