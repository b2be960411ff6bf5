"""The event log, the event bus and the output log in memory. The bus delivers the event log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from typing import Unpack

from longshore.adapters.shared.waiters import Waiters
from longshore.core.events.event import Event, NewEvent, next_event
from longshore.core.ids import split_task_id
from longshore.core.pages import decode_cursor, encode_cursor
from longshore.errors import AlreadyExists
from longshore.ports.events import Delivery, EventConditions, EventQueryResult
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition
from longshore.testing.memory.ledger import MemoryStore


class MemoryEventLog:
    """See ``ports.events.EventLog``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def append(self, **new: Unpack[NewEvent]) -> Event:
        last = await self.latest(new["tenant"], f"{new['body'].ENTITY}#{new['entity_id']}")
        event = next_event(new, last.sequence if last else 0, last.at if last else None)
        self._store.record([event])
        return event

    async def history(
        self, tenant: str, entity: str, *, after: int = 0, limit: int = 1000
    ) -> list[Event]:
        events = self._store.history(tenant, entity)
        return [event for event in events if event.sequence > after][:limit]

    async def latest(self, tenant: str, entity: str) -> Event | None:
        history = self._store.history(tenant, entity)
        return history[-1] if history else None

    async def query(
        self,
        tenant: str,
        *,
        limit: int = 100,
        cursor: str | None = None,
        **conditions: Unpack[EventConditions],
    ) -> EventQueryResult:
        start = 0 if cursor is None else decode_cursor("events", cursor, (int,))[0]
        matches = [
            (position, event)
            for position, event in enumerate(self._store.events[start:], start=start + 1)
            if event is not None
            and event.tenant == tenant
            and conditions.get("app") in (None, event.app)
            and conditions.get("event_type") in (None, event.type)
            and conditions.get("entity") in (None, event.entity)
            and conditions.get("job_id") in (None, getattr(event.body, "job_id", ""))
        ]
        page = matches[:limit]
        cursors = tuple(encode_cursor("events", position) for position, _ in page)
        return EventQueryResult(tuple(event for _, event in page), cursors, len(matches) > limit)


class MemoryEventBus:
    """See ``ports.events.EventBus``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._positions: dict[str, int] = {}  # acknowledged, by consumer

    async def publish(self, events: Sequence[Event]) -> list[Event]:
        refused = []
        for event in events:
            try:
                self._store.record(self._store.unrecorded([event]))
            except AlreadyExists:
                refused.append(event)
        return refused

    async def receive(
        self,
        consumer: str,
        *,
        types: Collection[str],
        limit: int,
        wait: timedelta,
    ) -> Delivery | None:
        return await self._store.event_waiters.wait_until(
            lambda: self._next(consumer, types, limit), wait=wait
        )

    def _next(self, consumer: str, types: Collection[str], limit: int) -> Delivery | None:
        start = self._positions.get(consumer, 0)
        events: list[Event] = []
        for position, event in enumerate(self._store.events[start:], start=start + 1):
            if event is not None and event.type in types:
                events.append(event)
                if len(events) == limit:
                    return Delivery(events=tuple(events), receipt=str(position))
        end = str(len(self._store.events))
        return Delivery(events=tuple(events), receipt=end) if events else None

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        self._positions[consumer] = max(int(receipt), self._positions.get(consumer, 0))


class MemoryOutputLog:
    """See ``ports.output.OutputLog``."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._waiters = Waiters(store.clock)
        self._chunks: dict[str, dict[OutputPosition, OutputChunk]] = {}

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        if split_task_id(task_id)[0] in self._store.removed:
            return  # late output of a job that was removed
        stored = self._chunks.setdefault(task_id, {})
        for chunk in chunks:
            stored.setdefault(OutputPosition(chunk.attempt, chunk.sequence), chunk)
        self._waiters.wake()

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        stored = self._chunks.get(task_id, {})
        positions = sorted(position for position in stored if position > after)
        return [stored[position] for position in positions[:limit]]

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        def look() -> bool | None:
            return any(position > after for position in self._chunks.get(task_id, {})) or None

        return await self._waiters.wait_until(look, wait=timeout) is not None

    def remove(self, task_ids: Iterable[str]) -> None:
        """Remove the output of tasks."""
        for task_id in task_ids:
            self._chunks.pop(task_id, None)
