"""The task queue and the queue controls in memory: the reference for visibility and receipts.

A receipt belongs to one delivery. A message merges into an earlier one of the same key only while
that is not delivered: otherwise its receiver, by deleting it, would also delete the newer one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from heapq import merge
from itertools import chain, count

from longshore.adapters.shared.waiters import Waiters
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import QueueDepth, QueuePause, capped_hold_end, lane_order
from longshore.core.tasks.states import Priority
from longshore.errors import ReceiptExpired
from longshore.ports.clock import Clock
from longshore.ports.task_queue import Message, OutgoingMessage

Lane = tuple[str, Priority]


@dataclass(slots=True, kw_only=True)
class _StoredMessage:
    number: int  # of all messages ever sent: a lower number is older
    outgoing: OutgoingMessage
    sent_at: datetime
    visible_at: datetime
    receives: int = 0
    receipt: str | None = None  # of the latest delivery, until the message is delayed

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
    """See ``ports.task_queue.TaskQueue``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiters = Waiters(clock)
        self._lanes: dict[Lane, dict[int, _StoredMessage]] = {}
        # Only messages that another message may merge into.
        self._by_key: dict[tuple[Lane, str], _StoredMessage] = {}
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
        stored = _StoredMessage(
            number=next(self._numbers), outgoing=outgoing, sent_at=now, visible_at=visible_at
        )
        if outgoing.merge_key is not None:
            earlier = self._by_key.setdefault((stored.lane, outgoing.merge_key), stored)
            if earlier is not stored:
                earlier.visible_at = min(earlier.visible_at, visible_at)
                earlier.sent_at = now
                return
        self._lanes.setdefault(stored.lane, {})[stored.number] = stored

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
        dead: list[_StoredMessage] = []
        for stored in self._ordered_messages(queues):
            if stored.visible_at > now:
                continue
            if stored.receives >= RECEIVE_LIMIT:
                dead.append(stored)
            else:
                taken.append(self._deliver(stored, now + hidden_for))
                if len(taken) == limit:
                    break
        for stored in dead:
            self._remove(stored)
            self._dead[f"message-{stored.number}"] = stored.message()
        if taken:
            self._receives += 1
        return taken

    def _ordered_messages(self, queues: Sequence[str]) -> Iterator[_StoredMessage]:
        """Messages in the lane order of this receive, older ones first within a lane."""
        for priority in lane_order(self._receives):
            lanes = (self._lanes.get((queue, priority), {}).values() for queue in queues)
            yield from merge(*lanes, key=lambda stored: stored.number)

    def _deliver(self, stored: _StoredMessage, hidden_until: datetime) -> Message:
        self._release(stored)
        stored.receives += 1
        stored.visible_at = hidden_until
        stored.receipt = f"receipt-{next(self._deliveries)}"
        self._by_receipt[stored.receipt] = stored
        return stored.message()

    def _remove(self, stored: _StoredMessage) -> None:
        self._release(stored)
        del self._lanes[stored.lane][stored.number]

    def _release(self, stored: _StoredMessage) -> None:
        """Make the receipt of the latest delivery invalid, and let no message merge into it."""
        if stored.receipt is not None:
            del self._by_receipt[stored.receipt]
            stored.receipt = None
        key = (stored.lane, stored.outgoing.merge_key or "")
        if self._by_key.get(key) is stored:
            del self._by_key[key]

    def _next_visible(self, queues: Sequence[str]) -> timedelta | None:
        now = self._clock.now()
        moments = (
            stored.visible_at
            for stored in self._ordered_messages(queues)
            if stored.visible_at > now
        )
        first = min(moments, default=None)
        return None if first is None else first - now

    async def extend(self, receipts: Sequence[str], *, hidden_for: timedelta) -> list[str]:
        until = self._clock.now() + hidden_for
        for receipt in self._by_receipt.keys() & set(receipts):
            self._by_receipt[receipt].visible_at = until
        self._waiters.wake()
        return [receipt for receipt in receipts if receipt not in self._by_receipt]

    async def delete(self, receipts: Sequence[str]) -> list[str]:
        stale = []
        for receipt in receipts:
            stored = self._by_receipt.get(receipt)
            if stored is None:
                stale.append(receipt)
            else:
                self._remove(stored)
        return stale

    async def delay(self, receipt: str, *, until: datetime) -> None:
        stored = self._by_receipt.get(receipt)
        if stored is None:
            raise ReceiptExpired(receipt)
        self._release(stored)
        stored.receives -= 1
        stored.visible_at = until
        self._waiters.wake()

    async def depth(self, queue: str) -> QueueDepth:
        now = self._clock.now()
        lanes = (self._lanes.get((queue, priority), {}).values() for priority in Priority)
        visible = [stored.visible_at <= now for stored in chain.from_iterable(lanes)]
        dead = sum(message.queue == queue for message in self._dead.values())
        return QueueDepth(ready=sum(visible), hidden=len(visible) - sum(visible), dead_letters=dead)

    async def dead_letters(self, queue: str | None, *, limit: int) -> list[Message]:
        dead = [
            message for message in self._dead.values() if queue is None or message.queue == queue
        ]
        return sorted(dead, key=lambda message: message.sent_at)[:limit]

    async def delete_dead_letter(self, message_id: str) -> bool:
        return self._dead.pop(message_id, None) is not None


class MemoryQueueControls:
    """See ``ports.configuration.QueueControls``."""

    def __init__(self, clock: Clock, waiters: Waiters) -> None:
        self._clock = clock
        self._pauses: dict[str, QueuePause] = {}
        self._hold_by_queue: dict[str, QueuePause] = {}  # ended holds too
        self._waiters = waiters  # woken by every change

    async def pause(
        self, name: str, *, by: str, reason: str | None = None, now: datetime
    ) -> QueuePause:
        pause = self._pauses.setdefault(name, QueuePause(name=name, by=by, reason=reason, at=now))
        self._waiters.wake()
        return pause

    async def hold(
        self, name: str, *, until: datetime, by: str, reason: str, now: datetime
    ) -> QueuePause:
        until = capped_hold_end(until, now)
        hold = QueuePause(name=name, by=by, reason=reason, at=now, until=until)
        current = self._hold_by_queue.get(name)
        if (
            current is None
            or not current.is_active(now)
            or current.remaining(now) < hold.remaining(now)
        ):
            current = self._hold_by_queue[name] = hold
            self._waiters.wake()
        return current

    async def resume(self, name: str) -> QueuePause | None:
        ended = self._pauses.pop(name, None)
        hold = self._hold_by_queue.pop(name, None)
        if ended is None and hold is not None and hold.is_active(self._clock.now()):
            ended = hold
        self._waiters.wake()
        return ended

    async def list_pauses(self) -> list[QueuePause]:
        # The sort is stable: the pause of a queue comes before its hold.
        return sorted(
            [*self._pauses.values(), *self._active_holds(self._hold_by_queue)],
            key=lambda paused: paused.name,
        )

    async def paused_queues(
        self, queues: Collection[str], *, changed_from: Collection[str] | None = None
    ) -> frozenset[str]:
        previous = None if changed_from is None else frozenset(changed_from)

        def look() -> frozenset[str] | None:
            paused = self.paused_now(queues)
            return paused if paused != previous else None

        # Without a timeout there is always a result.
        return (
            await self._waiters.wait_until(look, next_change=lambda: self.next_hold_end(queues))
            or frozenset()
        )

    def paused_now(self, queues: Collection[str]) -> frozenset[str]:
        """Returns which of these queues are paused or held."""
        on_hold = {hold.name for hold in self._active_holds(queues)}
        return frozenset(queues) & (self._pauses.keys() | on_hold)

    def next_hold_end(self, queues: Collection[str]) -> timedelta | None:
        """Returns the time until a hold of one of these queues ends; None: none is held."""
        now = self._clock.now()
        return min((hold.remaining(now) for hold in self._active_holds(queues)), default=None)

    def _active_holds(self, queues: Collection[str]) -> list[QueuePause]:
        now = self._clock.now()
        holds = (self._hold_by_queue.get(name) for name in queues)
        return [hold for hold in holds if hold is not None and hold.is_active(now)]
