"""Reads what tasks print, from the first piece to the last, and waits for more while they run.

A row is read *before* the output: a task that has ended has stored all its output before it said
so, and what is read after that is whole.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.ids import task_id_of
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.ports.output import START, OutputEntry, Place

LOOK_EVERY = timedelta(milliseconds=100)
"""How often a row is looked at while its task prints nothing."""

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


async def updates(
    backend: Backend,
    task_id: str,
    *,
    after: Place = START,
    look_every: timedelta = LOOK_EVERY,
) -> AsyncIterator[tuple[TaskRow, list[OutputEntry]]]:
    """The task's row and what it printed since, again and again until it has ended."""
    place = after
    while True:
        row = await row_of(backend, task_id)
        batch = await backend.output.read(task_id, after=place)
        yield row, batch
        if batch:
            place = Place(batch[-1].attempt, batch[-1].end)
        elif row.state.terminal:
            return
        else:
            await backend.output.wait(task_id, after=place, wait=look_every)


async def stored(
    backend: Backend, task_id: str, attempt: int | None = None
) -> AsyncIterator[OutputEntry]:
    """What a task has printed so far, of all attempts or of one."""
    place = Place(attempt or 0, 0)
    while batch := await backend.output.read(task_id, after=place):
        for entry in batch:
            if attempt is not None and entry.attempt > attempt:
                return
            yield entry
        place = Place(batch[-1].attempt, batch[-1].end)


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
    sources = [
        (key, stored(backend, task_id_of(job_id, key), attempt))
        for key, state in states.items()
        if state is not TaskState.WAITING
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
    places: dict[str, Place] = {}
    drained: set[str] = set()
    while True:
        job = await backend.ledger.job(job_id)
        states = await backend.ledger.task_states(job_id)
        pieces: list[Piece] = []
        for key, state in states.items():
            if key in drained or (state in _UNBEGUN and key not in places):
                continue
            place = places.setdefault(key, Place())
            batch = await backend.output.read(task_id_of(job_id, key), after=place)
            if batch:
                places[key] = Place(batch[-1].attempt, batch[-1].end)
                pieces += [Piece(key, entry) for entry in batch]
            elif state.terminal:
                drained.add(key)
        pieces.sort(key=lambda piece: piece.entry.at)
        for piece in pieces:
            if attempt in (None, piece.entry.attempt):
                yield piece
        if not pieces:
            if job is None or job.state.terminal:
                return
            await backend.clock.sleep(LOOK_EVERY)
