"""The body of ``longshore events``: the history of a job or task, and what is added to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from rich.text import Text

from longshore.core.events.codec import from_wire
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Document
from longshore.interfaces.cli.event_words import details_of, style_of
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import JsonItems, console

_TYPE_WIDTH = 23
_LONGEST_KEY = 24


class _Printer(Protocol):
    def add(self, event: Document) -> None: ...
    def end(self) -> None: ...


async def events(here: Here, text: str, *, every: bool, follow: bool) -> None:
    """Print events as they were recorded."""
    async with desk_for(here) as desk:
        named = await desk.find(text)
        every = every and named.task_id is None
        printer: _Printer
        if here.json:
            printer = JsonItems(lines=follow)
        else:
            keys = await desk.keys(named.job_id) if every else []
            printer = _Lines(desk.now, max((len(key) for key in keys), default=0))
        async for event in desk.events(named, every=every, follow=follow):
            printer.add(event)
        printer.end()


def event_of(wire: Document) -> Event:
    """An event that came from a desk; whose it is, is known to whoever asked."""
    return from_wire({"tenantId": "", "app": "", **wire})


class _Lines:
    def __init__(self, now: Callable[[], datetime], key_width: int) -> None:
        self._now = now
        self._console = console()
        # At least as wide as its title; 0 where there is only one entity.
        self._width = min(max(key_width, 4), _LONGEST_KEY) if key_width else 0
        head = [f"{'TIME':12}", f"{'SEQ':>3}", f"{'EVENT':{_TYPE_WIDTH}}", "DETAILS"]
        if self._width:
            head.insert(2, f"{'TASK':{self._width}}")
        self._console.print(Text("  ".join(head), style="bold"))

    def add(self, wire: Document) -> None:
        now, event = self._now(), event_of(wire)
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
