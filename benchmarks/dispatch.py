"""What dispatching costs for each task that ends, in jobs of very different sizes.

The jobs are wide (see ``wide_jobs``). What is counted is the dispatcher's own work, through the
ports and in SQLite; tasks are claimed and ended by hand beside it. ``alone``: each end is received
alone, the most expensive way. ``together``: as many as a delivery takes. ``failed``: alone, and
all in the middle fail. ``run`` is the real worker, dispatcher and sweeper on the whole job.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.counters import Counts
from benchmarks.figures import Figure, under
from benchmarks.harness import Scenario, run
from benchmarks.probes import Probe, TimingProbe
from benchmarks.scale import Scale
from benchmarks.sqlite_work import StatementCounter
from benchmarks.wide_jobs import dispatched, run_wide
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock

GROWS_LESS_THAN = 1.1
_SLOTS = 64
_WAYS: dict[str, dict[str, Any]] = {
    "alone": {"at_once": 1},
    "together": {"at_once": 256},
    "failed": {"at_once": 1, "fails": True},
}
# What is shown, and of what it is made up.
_KINDS = {
    "rows": ("rows_read", "rows_written"),
    "bytes": ("bytes_read", "bytes_written"),
    "vm_steps": ("statements", "rows_returned", "rows_changed", "pages_written"),
}


def scenario(size: int) -> Scenario:
    """The whole job, by the real services."""
    return partial(run_wide, size=size, slots=_SLOTS)


def measure(scale: Scale) -> Iterator[Figure]:
    """Counts for each task that ended, and how much more that is than in the smallest job."""
    for way in _WAYS:
        yield from _counted(way, scale)
    yield from _timed(scale)


def _counted(way: str, scale: Scale) -> Iterator[Figure]:
    smallest: dict[str, float] = {}
    for size in scale.wide:
        share = _work_per_task(way, size)
        smallest = smallest or share
        for kind, parts in _KINDS.items():
            times = share[kind] / smallest[kind]
            target = under(GROWS_LESS_THAN, times, "times the smallest")
            yield Figure(
                name=f"dispatch.{way}_{size}.{kind}",
                unit="a task",
                value=share[kind],
                target=target if kind == "rows" else None,
                details={"times_the_smallest": times, **{part: share[part] for part in parts}},
            )


def _work_per_task(way: str, size: int) -> dict[str, float]:
    """What both count, through the ports and in SQLite, for each task."""
    counts = Counts()

    async def by_hand(folder: Path, window: Probe) -> None:
        nonlocal counts
        async with sqlite_backend(folder / "data", SystemClock()) as backend:
            counts = await dispatched(backend, folder, window, size=size, **_WAYS[way])

    worked = run(by_hand, StatementCounter())
    share = {**counts.per_operation(size), **worked.per_operation(size)}
    for kind in ("rows", "bytes"):
        share[kind] = share[f"{kind}_read"] + share[f"{kind}_written"]
    return share


def _timed(scale: Scale) -> Iterator[Figure]:
    smallest = 0.0
    for size in scale.wide:
        timed = run(scenario(size), TimingProbe())
        spent = 1000 * timed.cpu_s / size
        smallest = smallest or spent
        yield Figure(
            name=f"dispatch.run_{size}",
            unit="cpu ms a task",
            value=spent,
            details={"times_the_smallest": spent / smallest, "a_second": size / timed.seconds},
        )
