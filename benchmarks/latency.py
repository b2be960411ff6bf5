"""How long an idle worker takes to begin: from just before the submit to the first line of work.

Each submit waits until the job before it has ended and a little more, so the worker always sleeps.
Each is followed by a bare start of the same interpreter, which is the floor of the child's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from benchmarks import worker_process
from benchmarks.figures import Figure, percentile
from benchmarks.harness import run
from benchmarks.probes import Probe
from benchmarks.scale import Scale
from benchmarks.system import CLOCK, open_system, run_worker, submit, wait_until_ended
from longshore.core.ids import task_id_of
from longshore.wiring.services import Services

_BARE_CLOCK = (sys.executable, "-c", "import time; print(time.time_ns())")
_PAUSE_S = 0.03
_NS_PER_MS = 1_000_000

# Where the worker is while the submits are made.
_WorkerLocation = Callable[[Services, Path], contextlib.AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class _Waits:
    """In milliseconds, one of each a submit."""

    started: list[float] = field(default_factory=list)
    first_line: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)


async def _submits(services: Services, count: int, waits: _Waits) -> None:
    for number in range(count):
        await asyncio.sleep(_PAUSE_S)
        before = time.time_ns()
        accepted = await submit(services, f"latency-{number}", CLOCK)
        await wait_until_ended(services)
        row = await services.backend.ledger.get_task(task_id_of(accepted.job.id, "t0"))
        assert row is not None
        assert row.started_at is not None
        assert row.result is not None
        # Events have whole milliseconds; so has the start, or each latency would look shorter.
        waits.started.append(_ms_of(row.started_at) - before // _NS_PER_MS)
        waits.first_line.append((json.loads(row.result.text or "") - before) / _NS_PER_MS)
        waits.bare.append(await asyncio.to_thread(_bare_start))


def _ms_of(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _bare_start() -> float:
    before = time.time_ns()
    answer = subprocess.run(_BARE_CLOCK, capture_output=True, check=True)
    return (int(answer.stdout) - before) / _NS_PER_MS


@contextlib.asynccontextmanager
async def _other_process(_services: Services, folder: Path) -> AsyncIterator[None]:
    starting = worker_process.run_worker_process(folder)
    await asyncio.to_thread(starting.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


@contextlib.asynccontextmanager
async def _same_process(services: Services, _folder: Path) -> AsyncIterator[None]:
    async with run_worker(services):
        yield


async def _idle_submits(
    folder: Path, _window: Probe, *, location: _WorkerLocation, count: int, waits: _Waits
) -> None:
    async with open_system(folder) as services, location(services, folder):
        await _submits(services, count, waits)


def measure(scale: Scale) -> Iterator[Figure]:
    """The medians and the tails, with the worker in another process and in this one."""
    for name, path in (("other_process", _other_process), ("same_process", _same_process)):
        waits = _Waits()
        run(partial(_idle_submits, location=path, count=scale.submits, waits=waits), Probe())
        yield from _figures(f"latency.{name}", waits)


def _figures(name: str, waits: _Waits) -> Iterator[Figure]:
    for share, text in ((0.5, "p50"), (0.99, "p99")):
        for kind, values in (("started", waits.started), ("first_line", waits.first_line)):
            floor = percentile(waits.bare, share) if kind == "first_line" else None
            yield Figure(
                name=f"{name}.{kind}_{text}",
                unit="ms",
                value=percentile(values, share),
                floor=floor,
                details={"submits": len(values), "most": max(values)},
            )
