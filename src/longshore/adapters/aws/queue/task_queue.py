"""The task queue on SQS: a standard queue for each lane, and one for its dead letters.

**Send.** Messages are sent in batches of ten. SQS delays a message by fifteen minutes at most, so
one with a longer delay is received early; its task's row says that it is not due, and the receiver
delays it again. The merge key is not used: two messages of one key stay two.

**Receive.** SQS tries to deliver older messages first, but does not promise it. A receive first
polls the lanes one after the other, in the order of their priorities, and then waits for one long
poll of 20 s on each lane. When the last long polls of all lanes brought nothing, it makes only
long polls: an idle worker costs 540 requests an hour for each queue. SQS delivers a message to a
poll even if its caller has gone, so a poll is never cancelled. A long poll that outlives its
receive serves the next one; messages that no receive wants are sent again.

**Receipts.** SQS refuses to hide a message with a stale receipt, but reports the deletion of a
stale or deleted message as a success. So on AWS ``delete`` does not report every stale receipt, and
a late ``delete`` may remove a message that another worker has received since: the worker continues
under its lease, and the sweeper enqueues the task again if needed. A message stays hidden for at
most twelve hours after its receive; then its receipt is stale.

**Delay.** SQS counts every receive. To delay a message without counting the delivery, it is sent
again and the old one is deleted, so its receives are counted from zero and its id is new.

**Lost answers.** A send is repeated: the message may be duplicated, never lost. Hiding and deleting
are idempotent. The messages of a lost receive stay hidden and are delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

from longshore.adapters.aws.client import AwsClient, AwsResponse
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.sqs import (
    BATCH_SIZE,
    HIDE_LIMIT,
    UNANSWERED,
    Lane,
    Receipt,
    SqsClient,
    entry_of,
    parse_message,
    parse_receipt,
    whole_seconds,
)
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import LOW_EVERY, QueueDepth, lane_order
from longshore.core.tasks.states import Priority
from longshore.errors import (
    BackendError,
    BackendRejected,
    BackendUnavailable,
    NotDeployed,
    ReceiptExpired,
)
from longshore.ports.clock import Clock
from longshore.ports.task_queue import Message, OutgoingMessage

logger = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_LIMIT_S = 20
_NOT_CURRENT = "not current"
_VERIFY_VISIBILITY_S = 30
_READ_VISIBILITY_S = 30
# A receive asks some of SQS's servers, so an empty answer is not conclusive.
_EMPTY_RECEIVES = 3


@dataclass(slots=True)
class _PendingReceive:
    """A receive that is under way."""

    lanes: Sequence[Lane]
    limit: int
    hidden_s: int
    messages: list[Message] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        return self.limit - len(self.messages)

    def take(self, polled: list[Message]) -> None:
        """Take polled messages of these lanes, up to the limit."""
        for message in list(polled):
            if _lane_of(message) in self.lanes and self.remaining:
                polled.remove(message)
                self.messages.append(message)


class SqsTaskQueue:
    """See ``ports.task_queue.TaskQueue``. Close it after the last receive."""

    def __init__(self, aws: AwsClient, names: Names, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._sqs = SqsClient(aws, clock)
        self._dead_letters = SqsDeadLetters(self._sqs, names)
        self._turns = 0
        self._receiving = 0  # receives that are under way
        self._polled: list[Message] = []  # that no receive has taken yet
        self._long_polls: dict[Lane, asyncio.Task[int]] = {}
        self._idle: set[Lane] = set()  # the last poll was a long poll that brought nothing
        self._resends: set[asyncio.Task[Any]] = set()
        self._in_flight: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Wait for the outstanding polls, 20 s at most, and send their messages again.

        A process that is killed instead loses nothing: the messages become visible again when
        their time is over, counted as received once.
        """
        while self._in_flight:
            await asyncio.wait(self._in_flight)

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        now = self._clock.now()
        codes = await self._sqs.send(
            [
                (self._names.queue(*_lane_of(m)), entry_of(m.body, m.visible_at, now))
                for m in messages
            ]
        )
        return [message for message, code in zip(messages, codes, strict=True) if code]

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        parsed, seconds = _parse_receipts(receipts), whole_seconds(min(hidden_for, HIDE_LIMIT))
        hidden = self._sqs.hide(
            [(self._names.queue(*r.lane), r.handle, seconds) for r in parsed.values()]
        )
        return await _stale(receipts, parsed, hidden)

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        parsed = _parse_receipts(receipts)
        handles = [(self._names.queue(*r.lane), r.handle) for r in parsed.values()]
        return await _stale(receipts, parsed, self._sqs.delete(handles))

    async def delay(self, receipt: str, *, until: datetime) -> None:
        parsed = parse_receipt(receipt)
        if parsed is None:
            raise ReceiptExpired(receipt)
        name = self._names.queue(*parsed.lane)
        verified = self._sqs.hide([(name, parsed.handle, _VERIFY_VISIBILITY_S)])
        if await _stale([receipt], [receipt], verified):
            raise ReceiptExpired(receipt)
        again = entry_of(parsed.body, until, self._clock.now())
        if not all(await self._sqs.replace([(name, parsed.handle, again)])):
            text = f"{name}: a message could not be sent again to delay it"
            raise BackendUnavailable(text)

    async def depth(self, queue: str) -> QueueDepth:
        names = [self._names.queue(queue, priority) for priority in Priority]
        names += [self._names.dead_letter_queue(queue, priority) for priority in Priority]
        counts = await asyncio.gather(*(self._sqs.counts(name) for name in names))
        live, dead = counts[: len(Priority)], counts[len(Priority) :]
        return QueueDepth(
            ready=sum(visible for visible, _ in live),
            hidden=sum(hidden for _, hidden in live),
            dead_letters=sum(visible + hidden for visible, hidden in dead),
        )

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        return await self._dead_letters.read(queue, limit=limit)

    async def delete_dead_letter(self, message_id: str) -> bool:
        return await self._dead_letters.drop(message_id)

    # Receiving ----------------------------------------------------------------------------------

    async def receive(
        self, queues: Sequence[str], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Message]:
        if limit <= 0:
            return []
        end = self._clock.elapsed() + wait
        lanes = self._lane_order(queues)
        # Messages that are being sent again are visible as soon as that is done.
        if self._resends:
            await asyncio.wait(self._resends)
        hidden_s = whole_seconds(min(hidden_for, HIDE_LIMIT))
        receive = _PendingReceive(lanes, limit, hidden_s)
        self._receiving += 1
        try:
            waits = wait > timedelta(0)
            if not (waits and self._idle.issuperset(lanes)):
                await self._poll_lanes(receive, skip_long_polls=waits)
            if waits and not receive.messages:
                await self._wait_for_message(receive, end)
        except BackendError as error:
            if not receive.messages:
                raise
            logger.warning("queue.partly_received", extra={"error": str(error)})
        except BaseException:
            self._return_messages(receive.messages)
            raise
        finally:
            self._receiving -= 1
            self._return_untaken()
        if receive.messages:
            self._turns += 1
        rank = {lane: number for number, lane in enumerate(lanes)}
        return sorted(receive.messages, key=lambda m: (rank[_lane_of(m)], m.sent_at))

    def _lane_order(self, queues: Sequence[str]) -> list[Lane]:
        """The lanes in the order of this turn; within a priority, queues take turns.

        The first queue also changes with the kind of turn, so that each queue comes first in each
        kind of turn, for any number of queues.
        """
        queues = list(dict.fromkeys(queues))
        first = (self._turns // LOW_EVERY + self._turns % LOW_EVERY) % max(len(queues), 1)
        rotated = [*queues[first:], *queues[:first]]
        return [(queue, priority) for priority in lane_order(self._turns) for queue in rotated]

    async def _poll_lanes(self, receive: _PendingReceive, *, skip_long_polls: bool) -> None:
        """Take what is visible now. A lane with an outstanding long poll is empty."""
        refusal: BackendRejected | None = None
        for lane in receive.lanes:
            if skip_long_polls and lane in self._long_polls:
                continue
            delivered, size = 1, 1
            while delivered == size and receive.remaining:
                size = min(BATCH_SIZE, receive.remaining)
                try:
                    poll = self._start(self._poll(lane, size, receive.hidden_s))
                    delivered = await asyncio.shield(poll)
                except BackendRejected as error:
                    refusal, delivered = error, 0  # the other lanes may have messages
                receive.take(self._polled)
        if refusal is not None:
            raise refusal

    async def _wait_for_message(self, receive: _PendingReceive, end: timedelta) -> None:
        """Wait for the first message on any of the lanes."""
        timer = asyncio.ensure_future(self._clock.sleep(end - self._clock.elapsed()))
        try:
            receive.take(self._polled)
            while True:
                left = end - self._clock.elapsed()
                if receive.messages or left <= timedelta(0):
                    return
                wait_s = min(_POLL_LIMIT_S, whole_seconds(left))
                for lane in receive.lanes:
                    if lane not in self._long_polls:
                        size = min(BATCH_SIZE, receive.limit)
                        long_poll = self._poll(lane, size, receive.hidden_s, wait_s)
                        self._long_polls[lane] = self._start(long_poll)
                polls = [self._long_polls[lane] for lane in receive.lanes]
                await asyncio.wait({*polls, timer}, return_when=asyncio.FIRST_COMPLETED)
                receive.take(self._polled)
                for poll in polls:
                    if poll.done() and not receive.messages:
                        poll.result()  # raises its error
        finally:
            timer.cancel()

    def _return_untaken(self) -> None:
        if not self._receiving:
            messages, self._polled = self._polled, []
            self._return_messages(messages)

    async def _poll(self, lane: Lane, limit: int, hidden_s: int, wait_s: int = 0) -> int:
        """Poll a lane once. Returns how many messages were delivered."""
        name = self._names.queue(*lane)
        try:
            raw = await self._sqs.receive(name, limit=limit, hidden_s=hidden_s, wait_s=wait_s)
        finally:
            if wait_s:
                del self._long_polls[lane]
        if wait_s and not raw:
            self._idle.add(lane)
        else:
            self._idle.discard(lane)
        self._polled += [parse_message(message, lane) for message in raw]
        self._return_untaken()
        return len(raw)

    def _return_messages(self, messages: Sequence[Message]) -> None:
        """Send messages again that no receive wants."""
        receipts = _parse_receipts([message.receipt for message in messages]).values()
        if not receipts:
            return
        now = self._clock.now()
        again = [
            (self._names.queue(*r.lane), r.handle, entry_of(r.body, None, now)) for r in receipts
        ]
        task = self._start(self._sqs.replace(again))
        self._resends.add(task)
        task.add_done_callback(self._resends.discard)

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._in_flight.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A receive that waits for the poll raises the error; there may be none.
            logger.debug("queue.poll_failed", extra={"error": str(error)})


def _lane_of(message: Message | OutgoingMessage) -> Lane:
    return message.queue, message.priority


def _parse_receipts(receipts: Sequence[str]) -> dict[str, Receipt]:
    """The receipts that can be read."""
    parsed = {receipt: parse_receipt(receipt) for receipt in receipts}
    return {text: receipt for text, receipt in parsed.items() if receipt is not None}


async def _stale(
    receipts: Sequence[str], used: Iterable[str], request: Awaitable[Sequence[str | None]]
) -> list[str]:
    """The receipts that are not current, or not known to be.

    Args:
        used: The receipts that the request is about.

    Raises:
        BackendUnavailable: SQS answered for none of the receipts.
    """
    results: dict[str, str | None] = dict.fromkeys(receipts, _NOT_CURRENT)
    # If the queue does not exist, none of its receipts is current.
    with suppress(NotDeployed):
        results |= zip(used, await request, strict=True)
    if results and all(code == UNANSWERED for code in results.values()):
        raise BackendUnavailable("sqs: no answer for any of the receipts")
    return [receipt for receipt in receipts if results[receipt] is not None]


class SqsDeadLetters:
    """The dead letters of every queue of a stage.

    They are read by receiving them, and made visible again afterwards. While one process reads,
    another does not see the same messages, so within a process only one reads at a time; another
    process may miss a dead letter until it reads again. SQS counts these reads as receives, so its
    count is not used. The number of messages is approximate and up to a minute late: a new dead
    letter may be missing from a list.

    A list costs one request, one for each dead-letter queue (three per queue), and two for ten
    letters.
    """

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
