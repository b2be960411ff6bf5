"""No-op tasks without children: what receive, claim, outcome and dispatch cost together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.figures import Figure
from benchmarks.harness import Scenario
from benchmarks.probes import Probe
from benchmarks.rounds import compare_writes
from benchmarks.scale import Scale
from benchmarks.stub import without_children
from benchmarks.system import TRUE, drain, open_system, submit
from longshore.settings.model import WorkerSettings

_USUAL = WorkerSettings().concurrency
_MANY = 64


def scenario(concurrency: int, total: int, *, one_job: bool = False) -> Scenario:
    """So many tasks wait; then a worker with so many slots begins."""
    return partial(_noops, concurrency=concurrency, total=total, one_job=one_job)


async def _noops(
    folder: Path, window: Probe, *, concurrency: int, total: int, one_job: bool
) -> None:
    with without_children():
        async with open_system(folder, concurrency=concurrency) as services:
            if one_job:
                await submit(services, "noops", *[TRUE] * total)
            else:
                jobs = (submit(services, f"noop-{number}", TRUE) for number in range(total))
                await asyncio.gather(*jobs)
            await drain(services, window)


def measure(scale: Scale) -> Iterator[Figure]:
    """Tasks a second with the usual number of slots and with many."""
    variants = (
        (f"noops.{_USUAL}", scenario(_USUAL, scale.noops)),
        (f"noops.{_MANY}", scenario(_MANY, scale.noops)),
        (f"noops.{_MANY}_one_job", scenario(_MANY, scale.noops, one_job=True)),
    )
    for name, ours in variants:
        compared = compare_writes(ours, scale.noops, scale.rounds, regroup=False)
        yield compared.figure(name, details={"commits_per_task": 1 / compared.per_commit})
