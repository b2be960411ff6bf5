"""Accepting jobs: one by one, by many callers at once, and ten thousand tasks in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.figures import Figure, under
from benchmarks.harness import Scenario
from benchmarks.probes import Probe
from benchmarks.rounds import compare_writes
from benchmarks.scale import Scale
from benchmarks.system import TRUE, open_system, submit

BULK_CPU_S = 2.0
_MANY = 64
# A job has four rows and costs a few times a transition.
_SHARE = 4


def scenario(callers: int, total: int) -> Scenario:
    """So many callers, together so many jobs of one task."""
    return partial(_one_by_one, callers=callers, count=total // callers)


async def _one_by_one(folder: Path, window: Probe, *, callers: int, count: int) -> None:
    async with open_system(folder) as services:

        async def call(caller: int) -> None:
            for turn in range(count):
                await submit(services, f"{caller}-{turn}", TRUE)

        with window:
            await asyncio.gather(*(call(caller) for caller in range(callers)))


def bulk_scenario(count: int) -> Scenario:
    """One call for one job of so many tasks."""
    return partial(_in_bulk, count=count)


async def _in_bulk(folder: Path, window: Probe, *, count: int) -> None:
    async with open_system(folder) as services:
        with window:
            await submit(services, "bulk", *[TRUE] * count)


def measure(scale: Scale) -> Iterator[Figure]:
    """Jobs a second, and tasks a second of one large job."""
    for callers in (1, _MANY):
        total = scale.single if callers == 1 else scale.shared // _SHARE // callers * callers
        compared = compare_writes(scenario(callers, total), total, scale.rounds)
        yield compared.figure(f"enqueue.{callers}", details={"per_commit": compared.per_commit})
    yield from _bulk(scale)


def _bulk(scale: Scale) -> Iterator[Figure]:
    compared = compare_writes(bulk_scenario(scale.bulk), scale.bulk, scale.rounds, regroup=False)
    yield compared.figure("enqueue.bulk", details={"tasks": scale.bulk})
    spent = [item.cpu_s for item in compared.ours]
    yield Figure(
        name="enqueue.bulk_cpu",
        unit="s",
        value=median(spent),
        spread=(min(spent), max(spent)),
        floor=median(item.cpu_s for item in compared.floors),
        target=under(BULK_CPU_S, median(spent), "s of CPU"),
        details={"tasks": scale.bulk},
    )
