"""Durable transitions: read the row, decide, commit row, event and message, wait for the disk.

``transitions.N`` is the whole loop that services go through. ``transitions.N_held`` leaves out the
read: the caller decides from the row that its last commit made, as a worker does with a task it
holds. Both are held to the same target, because both ways are in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure, at_least
from benchmarks.harness import Scenario
from benchmarks.probes import Probe
from benchmarks.rounds import compare_writes
from benchmarks.scale import Scale
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock
from longshore.core.jobs.numbers import NO_NUMBERS
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Refusal
from longshore.core.tasks.commands import Claim, Command, Release
from longshore.core.tasks.rows import TaskRow, TaskSpec
from longshore.ports.backend import Backend

MIN_PERCENT = 25.0
_MANY = 64
_LEASE = timedelta(seconds=45)


def scenario(callers: int, total: int, *, from_last: bool = False) -> Scenario:
    """So many callers, each with a task of its own, together so many transitions."""
    return partial(_transitions, callers=callers, count=total // callers, from_last=from_last)


async def _transitions(
    folder: Path, window: Probe, *, callers: int, count: int, from_last: bool
) -> None:
    async with sqlite_backend(folder, SystemClock()) as backend:
        rows = [await _create(backend, number) for number in range(callers)]
        with window:
            await asyncio.gather(
                *(_alternate(backend, row, count, from_last=from_last) for row in rows)
            )


async def _create(backend: Backend, number: int) -> TaskRow:
    now = backend.clock.now()
    spec = TaskSpec(
        id=f"job-bench_t{number}",
        tenant="default",
        app="longshore",
        job_id="job-bench",
        key=f"t{number}",
        number=number,
        definition="command",
        definition_version=0,
        created_at=now,
    )
    created = tasks.create(spec, NO_NUMBERS, now=now, change_id=f"create-{number}")
    await backend.ledger.commit(created)
    return created.row


async def _alternate(backend: Backend, row: TaskRow, count: int, *, from_last: bool) -> None:
    for turn in range(count):
        if not from_last:
            read = await backend.ledger.get_task(row.id)
            assert read is not None
            row = read
        command = _next_command(row, backend.ledger.epoch)
        change = tasks.apply(
            row, command, now=backend.clock.now(), change_id=f"{row.id}-change-{turn}"
        )
        assert not isinstance(change, Refusal), change
        assert change.durable
        await backend.ledger.commit(change)
        row = change.row


def _next_command(row: TaskRow, epoch: int) -> Command:
    if row.lease is not None:
        return Release(fence=row.lease.fence, reason="to take it again")
    # A claim that leaves the machine must be on disk, one that stays need not.
    return Claim(worker_id="w", process_id=1, lease_duration=_LEASE, epoch=epoch, local=False)


def measure(scale: Scale) -> Iterator[Figure]:
    """The rates of one caller and of many."""
    for callers, from_last in ((1, False), (_MANY, False), (_MANY, True), (256, False)):
        total = scale.single if callers == 1 else scale.shared // callers * callers
        compared = compare_writes(
            scenario(callers, total, from_last=from_last), total, scale.rounds
        )
        needed = at_least(MIN_PERCENT, compared.percent, "% of the floor")
        yield compared.figure(
            f"transitions.{callers}_held" if from_last else f"transitions.{callers}",
            target=needed if callers == _MANY else None,
            details={"per_commit": compared.per_commit},
        )
