"""The body of ``longshore events``: the history of a job or task, and what is added to it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from rich.text import Text

from longshore.core.events.codec import from_wire
from longshore.core.events.event import Event
from longshore.core.ids import split_task_id
from longshore.interfaces.cli.clients.api_client import Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.event_text import details_of, style_of
from longshore.interfaces.cli.render.screen import JsonItems, console

_TYPE_WIDTH = 23
_LONGEST_KEY = 24


class _Printer(Protocol):
    def add(self, event: Document) -> None: ...
    def end(self) -> None: ...


async def events(options: GlobalOptions, text: str, *, include_tasks: bool, follow: bool) -> None:
    """Print events as they were recorded."""
    async with open_client(options) as desk:
        named = await desk.resolve(text)
        include_tasks = include_tasks and named.task_id is None
        printer: _Printer
        if options.json:
            printer = JsonItems(lines=follow)
        else:
            keys = await desk.task_keys(named.job_id) if include_tasks else []
            printer = _EventLines(desk.now, max((len(key) for key in keys), default=0))
        async for event in desk.events(named, include_tasks=include_tasks, follow=follow):
            printer.add(event)
        printer.end()


def parse_event(document: Document) -> Event:
    """An event that came from a desk; whose it is, is known to whoever asked."""
    return from_wire({"tenantId": "", "app": "", **document})


class _EventLines:
    def __init__(self, now: Callable[[], datetime], key_width: int) -> None:
        self._now = now
        self._console = console()
        # At least as wide as its title; 0 where there is only one entity.
        self._width = min(max(key_width, 4), _LONGEST_KEY) if key_width else 0
        head = [f"{'TIME':12}", f"{'SEQ':>3}", f"{'EVENT':{_TYPE_WIDTH}}", "DETAILS"]
        if self._width:
            head.insert(2, f"{'TASK':{self._width}}")
        self._console.print(Text("  ".join(head), style="bold"))

    def add(self, document: Document) -> None:
        now, event = self._now(), parse_event(document)
        key = split_task_id(event.entity_id)[1]
        cells = [
            Text(formats.clock_time_of(event.at, now), style="dim"),
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
