"""What is known of a dead letter: how each attempt ended, and the last that was printed."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from longshore.core.attempt_history import PastAttempt, attempts_in
from longshore.core.dead_letters import DeadLetter
from longshore.core.events.event import Event
from longshore.core.events.types import TaskFailed, TaskTimeout
from longshore.core.rows import TaskRow
from longshore.core.sanitise import safe_excerpt
from longshore.ports.backend import Backend
from longshore.ports.output import OutputEntry, Place, Stream

_PAGE = 1000
_LINES = 10
_LINE_CHARACTERS = 500
# More than enough for that many lines, and far less than an attempt may print.
_PIECES = 200


@dataclass(frozen=True, slots=True)
class PrintedLine:
    """A line that an attempt printed, with secrets masked; the end of a long one is cut."""

    stream: Stream
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """A dead letter with its history."""

    letter: DeadLetter
    ended_by: str | None = None  # "worker", "sweeper" or "dlq"
    attempts: tuple[PastAttempt, ...] = ()
    last_lines: tuple[PrintedLine, ...] = ()  # of the last attempt


async def examine(backend: Backend, letter: DeadLetter) -> PostMortem:
    """Read what is stored of a dead letter; changes nothing."""
    row = letter.row
    if row is None:
        return PostMortem(letter=letter)
    history = [event async for event in _history(backend, row)]
    return PostMortem(
        letter=letter,
        ended_by=_ended_by(history),
        attempts=tuple(attempts_in(history)),
        last_lines=tuple([line async for line in _last_lines(backend, row)]),
    )


def _ended_by(history: Sequence[Event]) -> str | None:
    for event in reversed(history):
        if isinstance(event.body, TaskFailed):
            return event.body.source
        if isinstance(event.body, TaskTimeout):
            return event.context.origin
    return None


async def _history(backend: Backend, row: TaskRow) -> AsyncIterator[Event]:
    seen = 0
    while page := await backend.events.history(
        row.spec.tenant, f"TASK#{row.id}", after=seen, limit=_PAGE
    ):
        for event in page:
            yield event
        seen = page[-1].sequence


async def _last_lines(backend: Backend, row: TaskRow) -> AsyncIterator[PrintedLine]:
    lines: deque[tuple[Stream, bytes]] = deque(maxlen=_LINES)
    begun: dict[Stream, bytes] = {}
    async for entry in _last_pieces(backend, row):
        if entry.stream is Stream.LOST:
            continue
        *whole, rest = (begun.pop(entry.stream, b"") + entry.data).split(b"\n")
        lines.extend((entry.stream, line) for line in whole)
        if rest:
            begun[entry.stream] = rest
    lines.extend(begun.items())
    for stream, line in lines:
        text = line.decode(errors="replace").rstrip("\r")
        yield PrintedLine(stream, safe_excerpt(text, limit=_LINE_CHARACTERS))


async def _last_pieces(backend: Backend, row: TaskRow) -> AsyncIterator[OutputEntry]:
    # Nobody knows how much a worker has stored that died: then all of it is read.
    place = Place(row.attempt, max((row.last_output or 0) - _PIECES, 0))
    while batch := await backend.output.read(row.id, after=place, limit=_PAGE):
        for entry in batch:
            yield entry
        place = Place(batch[-1].attempt, batch[-1].end)
