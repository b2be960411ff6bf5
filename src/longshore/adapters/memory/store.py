"""The rows and events that the ledger, the event log and the bus of the memory backend share.

Nothing here awaits, so on the one event loop each call is atomic.
"""

from __future__ import annotations

from collections.abc import Iterable

from longshore.adapters.shared.waiters import Waiters
from longshore.core.events.event import Event
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import AlreadyExists
from longshore.ports.clock import Clock


class MemoryStore:
    """Rows by id; events by entity, and in the order in which they were recorded."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tasks: dict[str, TaskRow] = {}
        self.jobs: dict[str, JobRow] = {}
        self.events: list[Event] = []
        self.event_waiters = Waiters(clock)
        self._by_entity: dict[tuple[str, str], dict[int, Event]] = {}

    def history(self, tenant: str, entity: str) -> list[Event]:
        """All events of an entity, by sequence."""
        events = self._by_entity.get((tenant, entity), {})
        return [events[sequence] for sequence in sorted(events)]

    def unrecorded(self, events: Iterable[Event]) -> list[Event]:
        """The events that are not recorded yet.

        Raises:
            AlreadyExists: a different event has the same entity and sequence.
        """
        fresh: dict[tuple[str, str, int], Event] = {}
        for event in events:
            key = (event.tenant, event.entity, event.sequence)
            existing = self._by_entity.get(key[:2], {}).get(event.sequence) or fresh.get(key)
            if existing is None:
                fresh[key] = event
            elif existing != event:
                raise AlreadyExists("event", f"{event.entity} {event.sequence}")
        return list(fresh.values())

    def record(self, events: Iterable[Event]) -> None:
        """Append events that ``unrecorded`` has returned."""
        for event in events:
            self._by_entity.setdefault((event.tenant, event.entity), {})[event.sequence] = event
            self.events.append(event)
        self.event_waiters.wake()
