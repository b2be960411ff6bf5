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
from longshore.adapters.memory.ledger import MemoryLedger
from longshore.adapters.memory.logs import MemoryEventLog
from longshore.adapters.memory.store import MemoryStore, Waiters
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EntityType, EventBody
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery
from verification.simulation.faults import Fault, Faults

CONSUMERS = ("history", "dispatcher")
_HIDDEN_FOR = timedelta(seconds=30)
_BATCH_LIMIT = 10
_USUAL_DELAY_S = 0.1
_MAX_DELAY_S = 60.0
_READ_TIMEOUT = timedelta(seconds=5)
_POLL_INTERVAL = timedelta(milliseconds=250)


class StreamRecord(NamedTuple):
    """A record of the stream: all that one change has told."""

    position: str
    events: tuple[Event, ...]


class StreamStore(MemoryStore):
    """Rows are there at once, and what tells of them is on the stream."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.stream: list[StreamRecord] = []  # what is not dealt with
        self.commit_positions: dict[str, int] = {}  # events, by their place in the order of commits
        self.stream_waiters = Waiters(clock)
        self._positions = count(1)

    def record(self, events: Iterable[Event]) -> None:
        told = tuple(events)
        for event in told:
            self.commit_positions.setdefault(event.id, len(self.commit_positions) + 1)
        if told:
            self.stream.append(StreamRecord(str(next(self._positions)), told))
            self.stream_waiters.wake()

    def save(self, events: Iterable[Event]) -> None:
        """Add to the history what is not there."""
        fresh = self.unrecorded(events)
        for event in fresh:
            self.commit_positions.setdefault(event.id, len(self.commit_positions) + 1)
        super().record(fresh)

    def commit_position(self, event: Event) -> int:
        """Its place in the order of commits."""
        return self.commit_positions[event.id]


@dataclass(slots=True)
class _QueuedEvent:
    event: Event
    visible_at: datetime
    receipt: str | None = None


class StreamBus:
    """See ``ports.events.EventBus``; each consumer has a queue."""

    def __init__(self, store: StreamStore, faults: Faults, rng: Random) -> None:
        self._store = store
        self._clock = store.clock
        self._faults = faults
        self._rng = rng
        self._queues: dict[str, dict[int, _QueuedEvent]] = {name: {} for name in CONSUMERS}
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
            if self._faults.occurs(Fault.EVENT_REFUSED, self._rng):
                refused.append(event)
                continue
            for queue in self._queues.values():
                copies = 1 + self._faults.occurs(Fault.EVENT_DUPLICATED, self._rng)
                for _ in range(copies):
                    queue[next(self._numbers)] = _QueuedEvent(event, self._arrival_time())
        self._waiters.wake()
        return refused

    def _arrival_time(self) -> datetime:
        late = self._faults.occurs(Fault.EVENT_LATE, self._rng)
        seconds = self._rng.random() * (_MAX_DELAY_S if late else _USUAL_DELAY_S)
        return self._clock.now() + timedelta(seconds=seconds)

    async def receive(
        self, consumer: str, *, types: Collection[str], limit: int, wait: timedelta
    ) -> Delivery | None:
        wanted = None if consumer == "history" else types
        return await self._waiters.wait_until(
            lambda: self._take(consumer, wanted, min(limit, _BATCH_LIMIT)),
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

    def drop(self, consumer: str, receipt: str, *, keep: Collection[str] = ()) -> None:
        """Remove the messages of a delivery, besides those of some events."""
        queue = self._queues[consumer]
        for number, one in list(queue.items()):
            if one.receipt == receipt and one.event.id not in keep:
                del queue[number]


class StreamEventLog(MemoryEventLog):
    """See ``ports.events.EventLog``; what is on its way is not there."""

    def __init__(self, store: StreamStore, bus: StreamBus) -> None:
        super().__init__(store)
        self._stream_store = store
        self._bus = bus

    async def save(self, events: Sequence[Event]) -> None:
        """Keep what the bus brings."""
        self._stream_store.save(events)

    async def record(self, events: Sequence[Event]) -> None:
        self._stream_store.save(events)
        await self._bus.publish(events)

    async def append(
        self,
        *,
        tenant: str,
        app: str,
        entity_id: str,
        body: EventBody,
        context: EventContext,
        now: datetime,
    ) -> Event:
        stream = len(self._stream_store.stream)
        event = await super().append(
            tenant=tenant, app=app, entity_id=entity_id, body=body, context=context, now=now
        )
        # It has no row, so it comes by no stream: it is written where it stays.
        del self._stream_store.stream[stream:]
        self._stream_store.save([event])
        return event

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        last = min(self._last_sequence(entity), after + limit)
        ends = self._stream_store.clock.elapsed() + _READ_TIMEOUT
        while True:
            found = await super().history(tenant, entity, after=after, limit=limit)
            whole = [one for place, one in enumerate(found, after + 1) if one.sequence == place]
            if len(whole) >= last - after or self._stream_store.clock.elapsed() >= ends:
                return whole
            await self._stream_store.clock.sleep(_POLL_INTERVAL)

    def _last_sequence(self, entity: str) -> int:
        kind, _, name = entity.partition("#")
        row: TaskRow | JobRow | None = None
        if kind == EntityType.TASK:
            row = self._store.tasks.get(name)
        elif kind == EntityType.JOB:
            row = self._store.jobs.get(name)
        return row.last_sequence if row else 0


def make_stream_backend(clock: Clock, faults: Faults, rng: Random) -> Backend:
    """A backend in memory that behaves as the one on AWS does, as far as ports can show it."""
    store = StreamStore(clock)
    bus = StreamBus(store, faults, rng)
    return replace(
        memory_backend(clock),
        ledger=MemoryLedger(store, atomic=False),
        events=StreamEventLog(store, bus),
        bus=bus,
    )
