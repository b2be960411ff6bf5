"""The rows and events that the ledger, the event log and the bus of the memory backend share.

Nothing here awaits, so on the one event loop each call is atomic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeVar

from longshore.core.events.event import Event
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.errors import AlreadyExists
from longshore.ports.clock import Clock

T = TypeVar("T")


class Waiters:
    """Callers that wait for a change. Each change wakes all of them, and each looks again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # A dict for its order: a simulation must wake them in the same order each time.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        for waiting in self._waiting:
            _wake(waiting)

    async def wait_until(
        self,
        look: Callable[[], T | None],
        *,
        wait: timedelta | None = None,
        next_change: Callable[[], timedelta | None] = lambda: None,
    ) -> T | None:
        """The first result of ``look`` that is not None; None after ``wait``.

        Args:
            wait: None waits for ever.
            next_change: Time until the result changes without a wake-up; None: it does not.
        """
        end = None if wait is None else self._clock.elapsed() + wait
        while (result := look()) is None:
            left = None if end is None else end - self._clock.elapsed()
            if left is not None and left <= timedelta(0):
                return None
            pauses = [pause for pause in (left, next_change()) if pause is not None]
            # Nothing is awaited between the look and the registration, so no wake-up is lost.
            await self._wait_for_change(within=min(pauses, default=None))
        return result

    async def _wait_for_change(self, *, within: timedelta | None) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[woken] = None
        sleep = None if within is None else asyncio.ensure_future(self._clock.sleep(within))
        if sleep is not None:
            sleep.add_done_callback(lambda _: _wake(woken))
        try:
            await woken
        finally:
            del self._waiting[woken]
            if sleep is not None:
                sleep.cancel()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


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
