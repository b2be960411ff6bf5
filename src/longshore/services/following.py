"""Reads what tasks print, from the first piece to the last, and waits for more while they run.

A row is read *before* the output: a task that has ended has stored all its output before it said
so, and what is read after that is whole.

Where a look costs nothing, one that follows looks at a steady pace. Where each is paid for (see
``Backend.idle_look``), the pause doubles while nothing comes, and is short again when something
does; what is printed is waited for by the output log itself, and does not come later for it.

Output is read a little at a time, by bytes: a reader that stops, such as a client that no longer
takes what it is sent, holds that little and no more, however much was printed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple
from weakref import WeakKeyDictionary

from longshore.core.ids import task_id_of
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.output import START, OutputEntry, OutputLog, Place

LOOK_EVERY = timedelta(milliseconds=100)
"""How often a row is looked at while its task prints nothing; at first, where that is paid for."""

BYTES_AT_ONCE = 256 * 1024
"""About as much output as one reader holds."""

_ALL_AT_ONCE = 16 * BYTES_AT_ONCE  # of many tasks together
_FEWEST, _MOST = 16, 256  # entries in one read
_BATCHES_A_TURN = 100  # of one of many tasks

_UNBEGUN = frozenset({TaskState.WAITING, TaskState.PENDING})


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of output, and the key of the task that printed it."""

    key: str
    entry: OutputEntry


async def row_of(backend: Backend, task_id: str) -> TaskRow:
    """The task's row; it must be there."""
    row = await backend.ledger.task(task_id)
    if row is None:
        raise NotFound("task", task_id)
    return row


class Pace:
    """How long to wait before the next look."""

    def __init__(self, backend: Backend, first: timedelta) -> None:
        self._first = first
        self._longest = max(first, backend.idle_look or first)
        self.paid = backend.idle_look is not None
        self.pause = first

    def looked(self, *, came: bool) -> None:
        """Something was there, or not."""
        self.pause = self._first if came else min(2 * self.pause, self._longest)


class _Bookmark:
    """A place in a task's output, from which it is read on in batches of about so many bytes."""

    def __init__(self, place: Place = START, *, bytes_at_once: int = BYTES_AT_ONCE) -> None:
        self._bytes_at_once = bytes_at_once
        self.place = place
        self.count = _FEWEST  # how many entries to ask for
        self.at_end = False  # there was nothing more
        self.near_end = False  # there was less than asked for: it is worth waiting for the next

    def moved(self, found: Sequence[OutputEntry]) -> list[OutputEntry]:
        """As many of these entries, which are what comes next, as are not too much at once."""
        batch: list[OutputEntry] = []
        size = 0
        for entry in found:
            if batch and size + len(entry.data) > self._bytes_at_once:
                break
            batch.append(entry)
            size += len(entry.data)
        self.at_end = not found
        self.near_end = len(batch) == len(found) < self.count
        if len(batch) < len(found):
            self.count = len(batch)  # the others are read again: so many fit
        elif not self.near_end and 4 * size <= self._bytes_at_once:
            self.count = min(4 * self.count, _MOST)
        if batch:
            self.place = Place(batch[-1].attempt, batch[-1].end)
        return batch

    async def more(self, output: OutputLog, task_id: str) -> list[OutputEntry]:
        """What comes next; empty if there is nothing more by now."""
        return self.moved(await output.read(task_id, after=self.place, limit=self.count))


async def updates(
    backend: Backend,
    task_id: str,
    *,
    after: Place = START,
    look_every: timedelta = LOOK_EVERY,
) -> AsyncIterator[tuple[TaskRow, list[OutputEntry]]]:
    """The task's row and what it printed since, again and again until it has ended."""
    bookmark = _Bookmark(after)
    pace = Pace(backend, look_every)
    row = await row_of(backend, task_id)
    batch = await bookmark.more(backend.output, task_id)
    while True:
        yield row, batch
        if row.state.terminal and not batch:
            return
        asked = _Asked(task_id, bookmark.place, bookmark.count, row.attempt, pace.pause)
        waits = bookmark.near_end and not row.state.terminal
        known = row.state, row.attempt
        row, found = await (_together(backend, asked) if waits else _looked(backend, asked))
        batch = bookmark.moved(found)
        pace.looked(came=bool(batch) or (row.state, row.attempt) != known)


class _Asked(NamedTuple):
    """What a reader wants who waits for more."""

    task_id: str
    after: Place
    most: int
    attempt: int  # the task's last, as far as the reader knows
    wait: timedelta


_Look = tuple[TaskRow, list[OutputEntry]]


async def _looked(backend: Backend, asked: _Asked) -> _Look:
    row = await row_of(backend, asked.task_id)
    return row, await _read(backend, asked)


async def _read(backend: Backend, asked: _Asked) -> list[OutputEntry]:
    return await backend.output.read(asked.task_id, after=asked.after, limit=asked.most)


class _Turn:
    """A wait for more, and the look that follows."""

    look: asyncio.Future[_Look]
    readers = 0


# By output log, so that readers of different stores do not meet.
_turns: WeakKeyDictionary[OutputLog, dict[_Asked, _Turn]] = WeakKeyDictionary()


async def _together(backend: Backend, asked: _Asked) -> _Look:
    """Wait for more, then look: once for all readers who stand at the same place.

    Readers of one task who have read everything stand at one place and are woken by the same piece,
    so what would be done for each of two hundred is done for all of them.
    """
    turns = _turns.setdefault(backend.output, {})
    turn = turns.get(asked)
    if turn is None:
        turn = turns[asked] = _Turn()
        turn.look = asyncio.ensure_future(_waited(backend, asked, turn))
    turn.readers += 1
    try:
        return await asyncio.shield(turn.look)
    finally:
        turn.readers -= 1
        if not turn.readers:
            turn.look.cancel()  # does nothing if it is done
            _close(backend, asked, turn)


async def _waited(backend: Backend, asked: _Asked, turn: _Turn) -> _Look:
    came = await backend.output.wait(asked.task_id, after=asked.after, wait=asked.wait)
    # Whoever comes from now on must look for themselves: what they know may be newer.
    _close(backend, asked, turn)
    row = await row_of(backend, asked.task_id)
    if not came and row.attempt == asked.attempt and not row.state.terminal:
        # It still prints where the reader is: what has come since then, the next wait finds.
        return row, []
    return row, await _read(backend, asked)


def _close(backend: Backend, asked: _Asked, turn: _Turn) -> None:
    """Let nobody join this turn any more."""
    turns = _turns.get(backend.output, {})
    if turns.get(asked) is turn:
        del turns[asked]


async def stored(
    backend: Backend,
    task_id: str,
    attempt: int | None = None,
    *,
    bytes_at_once: int = BYTES_AT_ONCE,
) -> AsyncIterator[OutputEntry]:
    """What a task has printed so far, of all attempts or of one."""
    bookmark = _Bookmark(Place(attempt or 0, 0), bytes_at_once=bytes_at_once)
    while not bookmark.at_end:
        for entry in await bookmark.more(backend.output, task_id):
            if attempt is not None and entry.attempt > attempt:
                return
            yield entry


async def of_task(
    backend: Backend, row: TaskRow, *, follow: bool, attempt: int | None
) -> AsyncIterator[Piece]:
    """What one task printed, and prints while it runs."""
    if not follow:
        async for entry in stored(backend, row.id, attempt):
            yield Piece(row.spec.key, entry)
        return
    async for current, batch in updates(backend, row.id):
        for entry in batch:
            if attempt in (None, entry.attempt):
                yield Piece(row.spec.key, entry)
        if attempt is not None and current.attempt > attempt and not batch:
            return


async def of_job(
    backend: Backend, job_id: str, *, follow: bool, attempt: int | None
) -> AsyncIterator[Piece]:
    """What all tasks of a job printed, in the order of time, and print while it runs."""
    if follow:
        async for piece in _growing(backend, job_id, attempt):
            yield piece
        return
    states = await backend.ledger.task_states(job_id)
    keys = [key for key, state in states.items() if state is not TaskState.WAITING]
    share = _ALL_AT_ONCE // max(1, len(keys))
    sources = [
        (key, stored(backend, task_id_of(job_id, key), attempt, bytes_at_once=share))
        for key in keys
    ]
    async for piece in _merged(sources):
        yield piece


async def _merged(
    sources: Iterable[tuple[str, AsyncIterator[OutputEntry]]],
) -> AsyncIterator[Piece]:
    given = list(sources)
    heads = []
    for index, (_, source) in enumerate(given):
        if (entry := await anext(source, None)) is not None:
            heads.append((entry.at, index, entry))
    heapq.heapify(heads)
    while heads:
        _, index, entry = heads[0]
        key, source = given[index]
        yield Piece(key, entry)
        following = await anext(source, None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following.at, index, following))


async def _growing(backend: Backend, job_id: str, attempt: int | None) -> AsyncIterator[Piece]:
    bookmarks: dict[str, _Bookmark] = {}
    drained: set[str] = set()
    pace = Pace(backend, LOOK_EVERY)
    while True:
        job = await backend.ledger.job(job_id)
        states = await backend.ledger.task_states(job_id)
        keys = [
            key
            for key, state in states.items()
            if key not in drained and (state not in _UNBEGUN or key in bookmarks)
        ]
        share = _ALL_AT_ONCE // max(1, len(keys))
        for key in keys:
            bookmarks.setdefault(key, _Bookmark(bytes_at_once=share))
        sources = [(key, _by_now(backend, task_id_of(job_id, key), bookmarks[key])) for key in keys]
        printed = False
        async for piece in _merged(sources):
            printed = True
            if attempt in (None, piece.entry.attempt):
                yield piece
        drained.update(key for key in keys if states[key].terminal and bookmarks[key].at_end)
        if not printed and (job is None or job.state.terminal):
            return
        caught_up = all(bookmarks[key].at_end for key in keys)
        pace.looked(came=printed)
        if not printed or (pace.paid and caught_up):
            await backend.clock.sleep(pace.pause)


async def _by_now(
    backend: Backend, task_id: str, bookmark: _Bookmark
) -> AsyncIterator[OutputEntry]:
    """What there is; not for ever, because others may have begun to print meanwhile."""
    for _ in range(_BATCHES_A_TURN):
        for entry in await bookmark.more(backend.output, task_id):
            yield entry
        if bookmark.at_end:
            return
