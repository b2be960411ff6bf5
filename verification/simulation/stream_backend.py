"""A backend in memory with the event path of AWS: table stream, bus, queues of the consumers.

A commit appends its events to the stream, in order. The relay publishes them on the bus, which
delivers each event to each consumer's queue: at least once, in any order, with a delay. The history
consists of the events that were saved so far; a reader waits a little for events that its row says
are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from random import Random
from typing import NamedTuple

from longshore.adapters.shared.waiters import Waiters
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import EntityType, EventBody
from longshore.core.ids import split_task_id
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.ports.events import Delivery
from longshore.testing.memory.backend import memory_backend
from longshore.testing.memory.keyed_stores import MemoryBlobStore
from longshore.testing.memory.ledger import MemoryLedger, MemoryStore
from longshore.testing.memory.logs import MemoryEventLog, MemoryOutputLog
from longshore.testing.memory.retention import MemoryRetention
from verification.simulation.faults import Fault, Faults

CONSUMERS = ("history", "dispatcher")
_HIDDEN_FOR = timedelta(seconds=30)
_BATCH_LIMIT = 10
_USUAL_DELAY_S = 0.1
_MAX_DELAY_S = 60.0
_READ_TIMEOUT = timedelta(seconds=5)
_MAX_REMOVAL_PAUSE = timedelta(seconds=5)
_POLL_INTERVAL = timedelta(milliseconds=250)


class StreamRecord(NamedTuple):
    """A record of the stream: the events of one change."""

    position: str
    events: tuple[Event, ...]


class StreamStore(MemoryStore):
    """Rows are readable at once; their events go to the stream."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.stream: list[StreamRecord] = []  # unprocessed records
        self.commit_positions: dict[str, int] = {}  # by event id
        self.stream_waiters = Waiters(clock)
        self._positions = count(1)

    def record(self, events: Iterable[Event]) -> None:
        batch = tuple(events)
        for event in batch:
            self.commit_positions.setdefault(event.id, len(self.commit_positions) + 1)
        if batch:
            self.stream.append(StreamRecord(str(next(self._positions)), batch))
            self.stream_waiters.wake()

    def save(self, events: Iterable[Event]) -> None:
        """Add missing events to the history."""
        # What comes after the removal of its job goes with the tombstone.
        existing = [
            event for event in events if split_task_id(event.entity_id)[0] not in self.removed
        ]
        fresh = self.unrecorded(existing)
        for event in fresh:
            self.commit_positions.setdefault(event.id, len(self.commit_positions) + 1)
        super().record(fresh)

    def commit_position(self, event: Event) -> int:
        """The position of an event in the order of commits."""
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
        """Whether every event was delivered and acknowledged."""
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
        accepted_types = None if consumer == "history" else types
        return await self._waiters.wait_until(
            lambda: self._take(consumer, accepted_types, min(limit, _BATCH_LIMIT)),
            wait=wait,
            next_change=lambda: self._next_visible(consumer),
        )

    def _take(self, consumer: str, types: Collection[str] | None, limit: int) -> Delivery | None:
        now, queue = self._clock.now(), self._queues[consumer]
        seen = [number for number, queued in queue.items() if queued.visible_at <= now]
        for number in seen:
            # The bus's rule for a consumer filters by type.
            if types is not None and queue[number].event.type not in types:
                del queue[number]
        seen = [number for number in seen if number in queue]
        self._rng.shuffle(seen)
        receipt = f"events-{next(self._receipts)}"
        taken = [queue[number] for number in seen[:limit]]
        for queued in taken:
            queued.visible_at, queued.receipt = now + _HIDDEN_FOR, receipt
        events = tuple(queued.event for queued in taken)
        return Delivery(events=events, receipt=receipt) if events else None

    def _next_visible(self, consumer: str) -> timedelta | None:
        now = self._clock.now()
        moments = [queued.visible_at for queued in self._queues[consumer].values()]
        first = min((moment for moment in moments if moment > now), default=None)
        return None if first is None else first - now

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        self.drop(consumer, receipt)

    def drop(self, consumer: str, receipt: str, *, keep: Collection[str] = ()) -> None:
        """Remove the messages of a delivery, except those of some events."""
        queue = self._queues[consumer]
        for number, queued in list(queue.items()):
            if queued.receipt == receipt and queued.event.id not in keep:
                del queue[number]


class StreamEventLog(MemoryEventLog):
    """See ``ports.events.EventLog``; events in transit are not readable yet."""

    def __init__(self, store: StreamStore, bus: StreamBus) -> None:
        super().__init__(store)
        self._stream_store = store
        self._bus = bus

    async def save(self, events: Sequence[Event]) -> None:
        """Save events that the bus delivers."""
        self._stream_store.save(events)

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
        # It has no row and so no stream record: it is saved directly.
        del self._stream_store.stream[stream:]
        self._stream_store.save([event])
        return event

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        last = min(self._last_sequence(entity), after + limit)
        ends = self._stream_store.clock.elapsed() + _READ_TIMEOUT
        while True:
            events = await super().history(tenant, entity, after=after, limit=limit)
            complete = [
                queued
                for sequence, queued in enumerate(events, after + 1)
                if queued.sequence == sequence
            ]
            if len(complete) >= last - after or self._stream_store.clock.elapsed() >= ends:
                return complete
            await self._stream_store.clock.sleep(_POLL_INTERVAL)

    def _last_sequence(self, entity: str) -> int:
        kind, _, name = entity.partition("#")
        row: TaskRow | JobRow | None = None
        if kind == EntityType.TASK:
            row = self._store.tasks.get(name)
        elif kind == EntityType.JOB:
            row = self._store.jobs.get(name)
        return row.last_sequence if row else 0


class StreamRetention(MemoryRetention):
    """See ``ports.retention.Retention``: the row of a job goes first, its tasks afterwards.

    The decision is made from what was read before. A process may die between the two writes.
    """

    def __init__(
        self,
        store: StreamStore,
        output: MemoryOutputLog,
        blobs: MemoryBlobStore,
        faults: Faults,
        rng: Random,
    ) -> None:
        super().__init__(store, output, blobs)
        self._stream_store = store
        self._faults = faults
        self._rng = rng
        self.unfinished: dict[str, list[TaskRow]] = {}  # the tasks of jobs whose row is gone

    async def remove_jobs(
        self,
        job_ids: Sequence[str],
        *,
        ended_by: datetime,
        remember_until: datetime,
        on_removed: Callable[[JobRow, Sequence[TaskRow]], None] = lambda *_: None,
    ) -> list[str]:
        """Remove jobs; ``on_removed`` gets the rows of each at the moment of its removal."""
        removed: list[str] = []
        for job_id in job_ids:
            decided = self._store.jobs.get(job_id)
            if decided is None or not self._has_ended(decided, ended_by):
                continue
            await self._stream_store.clock.sleep(_MAX_REMOVAL_PAUSE * self._rng.random())
            job = self._store.jobs.get(job_id)
            if job is None or job.version != decided.version:
                continue
            self.unfinished[job_id] = self._tasks_of(job)
            on_removed(job, self.unfinished[job_id])
            self._store.remove(job, [])
            self._store.removed[job_id] = remember_until
            self._with_blobs[job_id] = None
            if self._faults.occurs(Fault.REMOVAL_CUT, self._rng):
                raise BackendUnavailable("the process has died in a removal")
            self._finish(job_id)
            removed.append(job_id)
        return removed

    def _finish(self, job_id: str) -> None:
        rows = self.unfinished.pop(job_id)
        self._output.remove(row.id for row in rows)
        self._store.remove_tasks([row for row in rows if row.id in self._store.tasks])

    async def remove_remains(self, *, now: datetime, limit: int) -> int:
        for job_id in list(self.unfinished):
            self._finish(job_id)
        return await super().remove_remains(now=now, limit=limit)


def make_stream_backend(clock: Clock, faults: Faults, rng: Random, removals: Random) -> Backend:
    """A backend in memory that behaves like the AWS backend, as far as its ports show."""
    store = StreamStore(clock)
    bus = StreamBus(store, faults, rng)
    backend = memory_backend(clock)
    output, blobs = MemoryOutputLog(store), MemoryBlobStore()
    return replace(
        backend,
        output=output,
        blobs=blobs,
        retention=StreamRetention(store, output, blobs, faults, removals),
        ledger=MemoryLedger(store, atomic=False),
        events=StreamEventLog(store, bus),
        bus=bus,
    )
