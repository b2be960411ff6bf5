"""The queue in memory: the reference for what hiding, receipts and keys mean.

A receipt belongs to one delivery. Messages of one key become one only while nobody holds a receipt
for it: else the holder, by deleting what it was given, would take a newer ring away with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import chain, count

from longshore.adapters.memory.waiters import Waiters
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.messages import lane_order
from longshore.core.tasks.states import Priority
from longshore.errors import ReceiptExpired
from longshore.ports.clock import Clock
from longshore.ports.task_queue import Message, OutgoingMessage, QueueDepth

Lane = tuple[str, Priority]


@dataclass(slots=True, kw_only=True)
class _StoredMessage:
    """A message on its lane."""

    number: int  # counts all that were ever sent: the lower is the older
    outgoing: OutgoingMessage
    sent_at: datetime
    visible_at: datetime
    receives: int = 0
    receipt: str | None = None  # of the latest delivery, until the message is given back

    @property
    def lane(self) -> Lane:
        return self.outgoing.queue, self.outgoing.priority

    def message(self) -> Message:
        return Message(
            id=f"message-{self.number}",
            queue=self.outgoing.queue,
            body=self.outgoing.body,
            receipt=self.receipt or "",
            receive_count=self.receives,
            sent_at=self.sent_at,
            priority=self.outgoing.priority,
        )


class MemoryTaskQueue:
    """See ``ports.queue.TaskQueue``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters = Waiters(clock)
        self._lanes: dict[Lane, dict[int, _StoredMessage]] = {}
        self._by_key: dict[
            tuple[Lane, str], _StoredMessage
        ] = {}  # only those that may take another in
        self._by_receipt: dict[str, _StoredMessage] = {}
        self._dead: dict[str, Message] = {}
        self._numbers = count(1)
        self._deliveries = count(1)
        self._receives = 0

    async def send(self, messages: Sequence[OutgoingMessage]) -> list[OutgoingMessage]:
        now = self._clock.now()
        for outgoing in messages:
            self._put(outgoing, now)
        self._waiters.wake()
        return []

    def _put(self, outgoing: OutgoingMessage, now: datetime) -> None:
        visible_at = now if outgoing.visible_at is None else outgoing.visible_at
        kept = _StoredMessage(
            number=next(self._numbers), outgoing=outgoing, sent_at=now, visible_at=visible_at
        )
        if outgoing.merge_key is not None:
            earlier = self._by_key.setdefault((kept.lane, outgoing.merge_key), kept)
            if earlier is not kept:
                earlier.visible_at = min(earlier.visible_at, visible_at)
                earlier.sent_at = now
                return
        self._lanes.setdefault(kept.lane, {})[kept.number] = kept

    async def receive(
        self, queues: Sequence[str], *, limit: int, hidden_for: timedelta, wait: timedelta
    ) -> list[Message]:
        taken = await self._waiters.wait_until(
            lambda: self._take(queues, limit, hidden_for) or None,
            wait=wait,
            next_change=lambda: self._next_visible(queues),
        )
        return taken or []

    def _take(self, queues: Sequence[str], limit: int, hidden_for: timedelta) -> list[Message]:
        now = self._clock.now()
        taken: list[Message] = []
        for kept in self._visible(queues, limit, now):
            if kept.receives >= RECEIVE_LIMIT:
                self._move_to_dead_letters(kept)
            else:
                taken.append(self._deliver(kept, now + hidden_for))
        if taken:
            self._receives += 1
        return taken

    def _visible(self, queues: Sequence[str], limit: int, now: datetime) -> list[_StoredMessage]:
        """What a receive takes off its lanes: those to deliver, and those that came too often."""
        found: list[_StoredMessage] = []
        left = limit
        for kept in self._ordered_messages(queues):
            if left == 0:
                break
            if kept.visible_at <= now:
                found.append(kept)
                left -= kept.receives < RECEIVE_LIMIT
        return found

    def _ordered_messages(self, queues: Sequence[str]) -> Iterator[_StoredMessage]:
        """Lane by lane as this turn has it, older first within one."""
        for priority in lane_order(self._receives):
            lanes = [lane for queue in queues if (lane := self._lanes.get((queue, priority)))]
            if len(lanes) == 1:
                yield from lanes[0].values()
            else:
                yield from merge(*(lane.values() for lane in lanes), key=lambda kept: kept.number)

    def _deliver(self, stored: _StoredMessage, hidden_until: datetime) -> Message:
        self._forget_receipt(stored)
        self._release_key(stored)
        stored.receives += 1
        stored.visible_at = hidden_until
        stored.receipt = f"receipt-{next(self._deliveries)}"
        self._by_receipt[stored.receipt] = stored
        return stored.message()

    def _move_to_dead_letters(self, stored: _StoredMessage) -> None:
        self._remove(stored)
        message = stored.message()
        self._dead[message.id] = message

    def _remove(self, stored: _StoredMessage) -> None:
        self._forget_receipt(stored)
        self._release_key(stored)
        del self._lanes[stored.lane][stored.number]

    def _forget_receipt(self, stored: _StoredMessage) -> None:
        if stored.receipt is not None:
            del self._by_receipt[stored.receipt]
            stored.receipt = None

    def _release_key(self, stored: _StoredMessage) -> None:
        key = stored.outgoing.merge_key
        if key is not None and self._by_key.get((stored.lane, key)) is stored:
            del self._by_key[stored.lane, key]

    def _next_visible(self, queues: Sequence[str]) -> timedelta | None:
        now = self._clock.now()
        moments = (
            kept.visible_at for kept in self._ordered_messages(queues) if kept.visible_at > now
        )
        first = min(moments, default=None)
        return None if first is None else first - now

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        until = self._clock.now() + hidden_for
        stale = []
        for receipt in receipts:
            kept = self._by_receipt.get(receipt)
            if kept is None:
                stale.append(receipt)
            else:
                kept.visible_at = until
        self._waiters.wake()
        return stale

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        stale = []
        for receipt in receipts:
            kept = self._by_receipt.get(receipt)
            if kept is None:
                stale.append(receipt)
            else:
                self._remove(kept)
        return stale

    async def delay(self, receipt: str, *, until: datetime) -> None:
        kept = self._by_receipt.get(receipt)
        if kept is None:
            raise ReceiptExpired(receipt)
        self._forget_receipt(kept)
        kept.receives -= 1
        kept.visible_at = until
        self._waiters.wake()

    async def depth(self, queue: str) -> QueueDepth:
        now = self._clock.now()
        lanes = (self._lanes.get((queue, priority), {}).values() for priority in Priority)
        visible = [kept.visible_at <= now for kept in chain.from_iterable(lanes)]
        dead = sum(message.queue == queue for message in self._dead.values())
        return QueueDepth(ready=sum(visible), hidden=len(visible) - sum(visible), dead_letters=dead)

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        dead = [one for one in self._dead.values() if queue is None or one.queue == queue]
        return sorted(dead, key=lambda message: message.sent_at)[:limit]

    async def delete_dead_letter(self, message_id: str) -> bool:
        return self._dead.pop(message_id, None) is not None
