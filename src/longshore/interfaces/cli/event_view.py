"""The body of ``longshore events``: the history of a job or task, and what is added to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol

from rich.text import Text

from longshore.core.events.codec import to_wire
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.interfaces.cli import naming, words
from longshore.interfaces.cli.event_words import details_of, style_of
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import JsonItems, console
from longshore.interfaces.cli.session import Session, existing, settings_for
from longshore.services.following import LOOK_EVERY

_PAGE = 500
_TYPE_WIDTH = 23
_LONGEST_KEY = 24


class _Printer(Protocol):
    async def show(self, event: Event) -> None: ...
    def end(self) -> None: ...


async def events(here: Here, text: str, *, every: bool, follow: bool) -> None:
    """Print events as they were recorded."""
    async with existing(settings_for(here)) as session:
        named = await naming.find(session.backend.ledger, session.settings.tenant, text)
        every = every and named.task_id is None
        printer: _Printer
        if here.json:
            printer = _Json(session, lines=follow)
        else:
            keys = await session.backend.ledger.task_states(named.job_id) if every else {}
            printer = _Lines(session, max((len(key) for key in keys), default=0))
        async for event in _events(session, named, every=every, follow=follow):
            await printer.show(event)
        printer.end()


async def _events(
    session: Session, named: naming.Named, *, every: bool, follow: bool
) -> AsyncIterator[Event]:
    source = JobHistory(session, named.job_id) if every else EntityHistory(session, named.entity)
    while True:
        # Looked at before the events are read: what is read after the end is all there is.
        ended = await _has_ended(session, named)
        async for event in source.more():
            yield event
        if ended or not follow:
            return
        await session.backend.clock.sleep(LOOK_EVERY)


async def _has_ended(session: Session, named: naming.Named) -> bool:
    ledger = session.backend.ledger
    if named.task_id is not None:
        task = await ledger.task(named.task_id)
        return task is None or task.state.terminal
    job = await ledger.job(named.job_id)
    return job is None or job.state.terminal


class EntityHistory:
    """One entity's events by sequence; each call gives those that are new."""

    def __init__(self, session: Session, entity: str) -> None:
        self._log = session.backend.events
        self._tenant = session.settings.tenant
        self._entity = entity
        self._seen = 0

    async def more(self) -> AsyncIterator[Event]:
        """What was not given before."""
        while page := await self._log.history(
            self._tenant, self._entity, after=self._seen, limit=_PAGE
        ):
            for event in page:
                yield event
            self._seen = page[-1].sequence


class JobHistory:
    """The events of a job and all its tasks, as they were recorded; each call gives the new ones.

    The last page of a query has no cursor to what will follow it, so it is read again from its
    beginning, and what was given already is passed over.
    """

    def __init__(self, session: Session, job_id: str) -> None:
        self._log = session.backend.events
        self._tenant = session.settings.tenant
        self._job_id = job_id
        self._cursor: str | None = None
        self._given = 0

    async def more(self) -> AsyncIterator[Event]:
        """What was not given before."""
        while True:
            page = await self._log.query(
                self._tenant, job_id=self._job_id, limit=_PAGE, cursor=self._cursor
            )
            for event in page.items[self._given :]:
                yield event
            if page.cursor is None:
                self._given = len(page.items)
                return
            self._cursor, self._given = page.cursor, 0


class _Json:
    def __init__(self, session: Session, *, lines: bool) -> None:
        self._session = session
        self._items = JsonItems(lines=lines)

    async def show(self, event: Event) -> None:
        settings = self._session.settings
        days = settings.limits.events_ttl_days
        wire = to_wire(
            event,
            environment=settings.environment,
            ttl_at=event.at + timedelta(days=days) if days else None,
        )
        wire["properties"] = await self._session.documents.whole(wire["properties"])
        self._items.add(wire)

    def end(self) -> None:
        self._items.end()


class _Lines:
    def __init__(self, session: Session, key_width: int) -> None:
        self._clock = session.backend.clock
        self._console = console()
        # At least as wide as its title; 0 where there is only one entity.
        self._width = min(max(key_width, 4), _LONGEST_KEY) if key_width else 0
        head = [f"{'TIME':12}", f"{'SEQ':>3}", f"{'EVENT':{_TYPE_WIDTH}}", "DETAILS"]
        if self._width:
            head.insert(2, f"{'TASK':{self._width}}")
        self._console.print(Text("  ".join(head), style="bold"))

    async def show(self, event: Event) -> None:
        now = self._clock.now()
        key = split_task_id(event.entity_id)[1]
        cells = [
            Text(words.clock_time(event.at, now), style="dim"),
            Text(f"{event.sequence:3}"),
            Text(f"{event.type:{_TYPE_WIDTH}}", style=style_of(event)),
            Text(details_of(event, now)),
        ]
        if self._width:
            cells.insert(2, Text(f"{key:{self._width}}"))
        line = Text("  ").join(cells)
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def end(self) -> None:
        """Each line is out already."""
