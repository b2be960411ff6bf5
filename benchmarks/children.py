"""No-op tasks with real children, against bare starts of the same programs, as many at a time."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.harness import run
from benchmarks.probes import Probe, TimingProbe
from benchmarks.rounds import compare
from benchmarks.scale import Scale
from benchmarks.system import CLOCK, TRUE, drain, open_system, submit

_CONCURRENCY = os.cpu_count() or 1
BARE_PYTHON = (sys.executable, "-c", "pass")


async def _with_children(folder: Path, window: Probe, *, task: dict[str, Any], total: int) -> None:
    async with open_system(folder, concurrency=_CONCURRENCY) as services:
        await asyncio.gather(*(submit(services, f"child-{i}", task) for i in range(total)))
        await drain(services, window)


def _bare(argv: Sequence[str], total: int) -> TimingProbe:
    start = partial(subprocess.run, argv, stdin=subprocess.DEVNULL, check=True)
    timed = TimingProbe()
    with ThreadPoolExecutor(_CONCURRENCY) as pool, timed:
        for started in [pool.submit(start) for _ in range(total)]:
            started.result()
    return timed


def _ours(task: dict[str, Any], total: int) -> TimingProbe:
    return run(partial(_with_children, task=task, total=total), TimingProbe())


def measure(scale: Scale) -> Iterator[Figure]:
    """Tasks a second: a command, and a function in an interpreter of its own."""
    for name, task, bare in (("command", TRUE, ("true",)), ("python", CLOCK, BARE_PYTHON)):
        compared = compare(
            scale.children,
            scale.rounds,
            ours=partial(_ours, task, scale.children),
            floor=partial(_bare, bare, scale.children),
        )
        yield compared.figure(f"children.{name}", details={"at_once": _CONCURRENCY})
