"""What the ledger, the event log and the bus of the memory backend share: rows and events.

Nothing here awaits, so on the one event loop each call is one step that nobody sees half done.
"""

from __future__ import annotations

from collections.abc import Iterable

from longshore.adapters.memory.waiters import Waiters
from longshore.core.events.event import Event
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import AlreadyExists
from longshore.ports.clock import Clock


class MemoryStore:
    """Rows by id, and events by entity and in the order in which they were recorded."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.tasks: dict[str, TaskRow] = {}
        self.jobs: dict[str, JobRow] = {}
        self.events: list[Event] = []
        self.event_waiters = Waiters(clock)
        self._by_entity: dict[tuple[str, str], dict[int, Event]] = {}

    def history(self, tenant: str, entity: str) -> list[Event]:
        """All events of an entity, by sequence."""
        found = self._by_entity.get((tenant, entity), {})
        return [found[sequence] for sequence in sorted(found)]

    def unrecorded(self, events: Iterable[Event]) -> list[Event]:
        """Those that are not recorded yet.

        Raises:
            AlreadyExists: another event has the place of one of them.
        """
        fresh: dict[tuple[str, str, int], Event] = {}
        for event in events:
            place = (event.tenant, event.entity, event.sequence)
            known = self._by_entity.get(place[:2], {}).get(event.sequence) or fresh.get(place)
            if known is None:
                fresh[place] = event
            elif known != event:
                raise AlreadyExists("event", f"{event.entity} {event.sequence}")
        return list(fresh.values())

    def record(self, events: Iterable[Event]) -> None:
        """Write events that ``unrecorded`` has let pass."""
        for event in events:
            self._by_entity.setdefault((event.tenant, event.entity), {})[event.sequence] = event
            self.events.append(event)
        self.event_waiters.wake()
