"""Running scenarios: a fresh folder each time, a limit in time, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from benchmarks.probes import Probe

Scenario = Callable[[Path, Probe], Awaitable[None]]
ProbeT = TypeVar("ProbeT", bound=Probe)

_LIMIT_S = 300.0


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder for one measurement. On the disk that TMPDIR names: in memory, fsync is nothing."""
    with tempfile.TemporaryDirectory(prefix="longshore-bench-") as folder:
        yield Path(folder)


def run(scenario: Scenario, probe: ProbeT) -> ProbeT:
    """Let a scenario run once under a probe, and hand the probe back."""
    with scratch() as folder:
        with probe.watching():
            asyncio.run(_limited(scenario(folder, probe)))
        probe.closed(folder)
    return probe


async def _limited(work: Awaitable[None]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        await work
