"""Places in a growing list of events, for readers that come back.

The log's own cursors lead from page to page, and the last page has none: nobody can say yet what
follows it. A reader that waits for more, or was cut off in the middle of a page, needs a place of
its own: a cursor, and how many events behind it the reader has had. Events are only ever added at
the end, so what lies between the two does not change. That number means something in one list only,
so a mark of the list goes with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from longshore.core.events.event import Event
from longshore.errors import UsageError
from longshore.ports.pages import Page

PATTERN = r"^[A-Za-z0-9_-]{0,500}(\.[0-9]{1,4}\.[0-9a-f]{8})?$"
"""What a place looks like as text; the empty one is the beginning."""

_MARK_BYTES = 4
_MOST_SEEN = 5_000
# A page that is read again and again should be a short one.
_SHORT = 20


@dataclass(frozen=True, slots=True)
class Place:
    """So many events behind a cursor have been seen."""

    cursor: str | None = None
    seen: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some events, each with the place behind it."""

    events: tuple[tuple[Place, Event], ...]
    end: Place  # behind all of them
    more: bool  # whether something is known to follow


@dataclass(frozen=True, slots=True)
class Telling:
    """A list of events: what it is of, and how to ask for so many of it behind a cursor."""

    name: str
    ask: Callable[[int, str | None], Awaitable[Page[Event]]]

    def written(self, place: Place) -> str:
        """The place as text."""
        return f"{place.cursor or ''}.{place.seen}.{self._mark}"

    def read(self, text: str) -> Place:
        """The place that a text names.

        Raises:
            UsageError: there can be no such place in this list.
        """
        cursor, _, rest = text.partition(".")
        seen, _, mark = rest.partition(".")
        if int(seen or 0) > _MOST_SEEN:
            message = "the cursor is not valid; leave it out to begin at the first page"
            raise UsageError(message)
        if mark not in ("", self._mark):
            message = "the cursor belongs to a list of other events; leave it out to begin"
            raise UsageError(message)
        return Place(cursor or None, int(seen or 0))

    @property
    def _mark(self) -> str:
        return hashlib.blake2b(self.name.encode(), digest_size=_MARK_BYTES).hexdigest()

    async def behind(self, place: Place, limit: int) -> Batch:
        """The next events.

        Raises:
            UsageError: there can be no such place.
        """
        page = await self.ask(place.seen + limit, place.cursor)
        fresh = enumerate(page.items[place.seen :], start=place.seen + 1)
        events = tuple((Place(place.cursor, number), event) for number, event in fresh)
        if page.cursor is not None:
            return Batch(events=events, end=Place(page.cursor), more=True)
        end = Place(place.cursor, len(page.items))
        if end.seen > _SHORT:
            # All but the last are followed by something, so there is a cursor to it.
            shorter = await self.ask(end.seen - 1, place.cursor)
            end = Place(shorter.cursor, 1) if shorter.cursor is not None else end
        return Batch(events=events, end=end, more=False)
