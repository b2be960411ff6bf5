"""Events as they travel on AWS: by the table's stream, over a bus, to queues; later than their row.

What a commit tells is on the stream with it, in order. Whoever relays it puts it on the bus, which
brings each event to each consumer's queue: at least once, in any order, after a while. The history
is what has been saved of it so far, and a reader waits a little for what its row says is coming.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import NamedTuple

from longshore.adapters.memory.backend import memory_backend
from longshore.adapters.memory.events import MemoryEventLog
from longshore.adapters.memory.ledger import MemoryLedger
from longshore.adapters.memory.store import MemoryStore
from longshore.adapters.memory.waiting import Waiters
from longshore.core.events.event import Context, Event
from longshore.core.events.types import EntityType, EventBody
from longshore.core.rows import JobRow, TaskRow
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery
from longshore.testing.simulation.faults import Fault, Faults

CONSUMERS = ("history", "dispatcher")
_HIDDEN_FOR = timedelta(seconds=30)
_AT_ONCE = 10
_ON_ITS_WAY = 0.1
_LATEST = 60.0
_PATIENCE = timedelta(seconds=5)
_LOOK_EVERY = timedelta(milliseconds=250)


class Streamed(NamedTuple):
    """A record of the stream: all that one change has told."""

    place: str
    events: tuple[Event, ...]


class StreamedStore(MemoryStore):
    """Rows are there at once, and what tells of them is on the stream."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.stream: list[Streamed] = []  # what is not dealt with
        self.committed: dict[str, int] = {}  # events, by their place in the order of commits
        self.stream_waiters = Waiters(clock)
        self._places = count(1)

    def record(self, events: Iterable[Event]) -> None:
        told = tuple(events)
        for event in told:
            self.committed.setdefault(event.id, len(self.committed) + 1)
        if told:
            self.stream.append(Streamed(str(next(self._places)), told))
            self.stream_waiters.wake()

    def save(self, events: Iterable[Event]) -> None:
        """Add to the history what is not there."""
        fresh = self.unrecorded(events)
        for event in fresh:
            self.committed.setdefault(event.id, len(self.committed) + 1)
        super().record(fresh)

    def order_of(self, event: Event) -> int:
        """Its place in the order of commits."""
        return self.committed[event.id]


@dataclass(slots=True)
class _Queued:
    event: Event
    visible_at: datetime
    receipt: str | None = None


class StreamedBus:
    """See ``ports.events.EventBus``; each consumer has a queue."""

    def __init__(self, store: StreamedStore, faults: Faults, rng: Random) -> None:
        self._store = store
        self._clock = store.clock
        self._faults = faults
        self._rng = rng
        self._queues: dict[str, dict[int, _Queued]] = {name: {} for name in CONSUMERS}
        self._waiters = Waiters(store.clock)
        self._numbers = count(1)
        self._receipts = count(1)

    @property
    def empty(self) -> bool:
        """Whether everything has come to where it was to go."""
        return not self._store.stream and not any(self._queues.values())

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        refused = []
        for event in events:
            if self._faults.happens(Fault.EVENT_REFUSED, self._rng):
                refused.append(event)
                continue
            for queue in self._queues.values():
                copies = 1 + self._faults.happens(Fault.EVENT_DOUBLED, self._rng)
                for _ in range(copies):
                    queue[next(self._numbers)] = _Queued(event, self._arrival())
        self._waiters.wake()
        return refused

    def _arrival(self) -> datetime:
        late = self._faults.happens(Fault.EVENT_LATE, self._rng)
        seconds = self._rng.random() * (_LATEST if late else _ON_ITS_WAY)
        return self._clock.now() + timedelta(seconds=seconds)

    async def receive(
        self, consumer: str, *, types: Collection[str], limit: int, wait: timedelta
    ) -> Delivery | None:
        wanted = None if consumer == "history" else types
        return await self._waiters.until(
            lambda: self._take(consumer, wanted, min(limit, _AT_ONCE)),
            wait=wait,
            next_change=lambda: self._next_visible(consumer),
        )

    def _take(self, consumer: str, types: Collection[str] | None, limit: int) -> Delivery | None:
        now, queue = self._clock.now(), self._queues[consumer]
        seen = [number for number, one in queue.items() if one.visible_at <= now]
        for number in seen:
            # A rule lets pass what its consumer wants.
            if types is not None and queue[number].event.type not in types:
                del queue[number]
        seen = [number for number in seen if number in queue]
        self._rng.shuffle(seen)
        receipt = f"events-{next(self._receipts)}"
        taken = [queue[number] for number in seen[:limit]]
        for one in taken:
            one.visible_at, one.receipt = now + _HIDDEN_FOR, receipt
        events = tuple(one.event for one in taken)
        return Delivery(events=events, receipt=receipt) if events else None

    def _next_visible(self, consumer: str) -> timedelta | None:
        now = self._clock.now()
        moments = [one.visible_at for one in self._queues[consumer].values()]
        first = min((moment for moment in moments if moment > now), default=None)
        return None if first is None else first - now

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        self.drop(consumer, receipt)

    def drop(self, consumer: str, receipt: str, *, but: Collection[str] = ()) -> None:
        """Remove the messages of a delivery, besides those of some events."""
        queue = self._queues[consumer]
        for number, one in list(queue.items()):
            if one.receipt == receipt and one.event.id not in but:
                del queue[number]


class StreamedEventLog(MemoryEventLog):
    """See ``ports.events.EventLog``; what is on its way is not there."""

    def __init__(self, store: StreamedStore, bus: StreamedBus) -> None:
        super().__init__(store)
        self._streamed = store
        self._bus = bus

    async def save(self, events: Sequence[Event]) -> None:
        """Keep what the bus brings."""
        self._streamed.save(events)

    async def record(self, events: Sequence[Event]) -> None:
        self._streamed.save(events)
        await self._bus.publish(events)

    async def append(
        self,
        *,
        tenant: str,
        app: str,
        entity_id: str,
        body: EventBody,
        context: Context,
        now: datetime,
    ) -> Event:
        stream = len(self._streamed.stream)
        event = await super().append(
            tenant=tenant, app=app, entity_id=entity_id, body=body, context=context, now=now
        )
        # It has no row, so it comes by no stream: it is written where it stays.
        del self._streamed.stream[stream:]
        self._streamed.save([event])
        return event

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        last = min(self._last_sequence(entity), after + limit)
        ends = self._streamed.clock.elapsed() + _PATIENCE
        while True:
            found = await super().history(tenant, entity, after=after, limit=limit)
            whole = [one for place, one in enumerate(found, after + 1) if one.sequence == place]
            if len(whole) >= last - after or self._streamed.clock.elapsed() >= ends:
                return whole
            await self._streamed.clock.sleep(_LOOK_EVERY)

    def _last_sequence(self, entity: str) -> int:
        kind, _, name = entity.partition("#")
        row: TaskRow | JobRow | None = None
        if kind == EntityType.TASK:
            row = self._store.tasks.get(name)
        elif kind == EntityType.JOB:
            row = self._store.jobs.get(name)
        return row.last_sequence if row else 0


def streamed_backend(clock: Clock, faults: Faults, rng: Random) -> Backend:
    """A backend in memory that behaves as the one on AWS does, as far as ports can show it."""
    store = StreamedStore(clock)
    bus = StreamedBus(store, faults, rng)
    return replace(
        memory_backend(clock),
        ledger=MemoryLedger(store, atomic=False),
        events=StreamedEventLog(store, bus),
        bus=bus,
    )
