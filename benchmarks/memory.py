"""Memory over many tasks: what a worker and its children hold must not grow with what was done.

A real worker runs job after job of tasks that do nothing. Memory that stays in use after a task has
ended shows as a slope: the least-squares line through the resident memory over the tasks done, from
the end of the first quarter on. In that quarter caches fill and the pool gets its members.

What is flat is not level: Python takes memory from the system in pieces of 1 MiB and gives it back
when a full collection has emptied one. One such piece in the middle of the run is a slope of up to
100 KiB for every thousand tasks, and it comes and goes. So "flat" is 128 KiB: 131 bytes a task,
less than an id takes that is kept in a dictionary. And no process may have grown by 5 % from the
first samples to the last, which for the small ones is the narrower bound.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, linear_regression, median

from benchmarks import worker_process
from benchmarks.figures import Figure, Target
from benchmarks.harness import scratch
from benchmarks.processes import children_of_all, pss_kib, rss_kib, tree
from benchmarks.scale import Scale
from benchmarks.system import TENANT, open_system, submit, wait_until_ended
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.wiring.services import Services

FLAT_KIB = 128.0  # for every thousand tasks
GROWTH_PERCENT = 5.0

_NOOP = "noop"
_UNIT = "KiB/1,000 tasks"
_ROUNDS = 20  # jobs, one after another, with a sample after each
_FORKS_PER_NOOP = 0.1  # a fork costs more than a task of the pool
_WARM_UP = 0.25
_ENDS = 0.1  # of the samples, at each end, whose medians give the growth
_LIMIT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Resident memory after so many tasks, in KiB.

    What is below the reapers comes and goes: a fork with its task, a member of the pool after many.
    """

    done: int
    worker: float
    fork_server: float
    reaper: float  # on average: one more of them may come at any time


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One worker and its tasks, from the first to the last."""

    samples: Sequence[Sample]
    seconds: float
    processes: int  # in the end
    together_kib: float  # all of them in the end, what they share counted once


def measure(scale: Scale) -> Iterator[Figure]:
    """Many tasks in children that are used again; then fewer, with a fork for each."""
    if not Path("/proc/self/smaps_rollup").exists():
        yield Figure(name="memory.worker", unit=_UNIT, value=None, note="needs Linux's /proc")
        return
    pool = _watched(Isolation.POOL, scale.noops)
    yield slope("memory.worker", pool, lambda sample: sample.worker)
    yield slope("memory.fork_server", pool, lambda sample: sample.fork_server)
    yield slope("memory.reaper", pool, lambda sample: sample.reaper)
    # The worker does the same for both, and over so few tasks one piece of memory would be a slope.
    fork = _watched(Isolation.FORK, max(1, round(_FORKS_PER_NOOP * scale.noops)))
    yield slope("memory.fork_server_forks", fork, lambda sample: sample.fork_server)
    yield slope("memory.reaper_forks", fork, lambda sample: sample.reaper)


def _watched(isolation: Isolation, tasks: int) -> Run:
    with scratch() as folder:
        return asyncio.run(_work_off(folder, isolation, tasks))


async def _work_off(folder: Path, isolation: Isolation, tasks: int) -> Run:
    definition = Definition(
        name=_NOOP,
        runner=RunnerKind.PYTHON,
        isolation=isolation,
        options={"function": "time:monotonic"},
    )
    async with asyncio.timeout(_LIMIT_S), open_system(folder) as services:
        await services.backend.definitions.put(TENANT, definition)
        starting = worker_process.run_worker_process(folder)
        worker = await asyncio.to_thread(starting.__enter__)
        try:
            return await _watch(services, worker, tasks)
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)


async def _watch(services: Services, worker: int, tasks: int) -> Run:
    samples: list[Sample] = []
    began = time.monotonic()
    for done in range(tasks, (_ROUNDS + 1) * tasks, tasks):
        await submit(services, f"memory-{done}", *[{"name": _NOOP, "input": {}}] * tasks)
        await wait_until_ended(services)
        children = children_of_all()
        (fork_server,) = children[worker]
        samples.append(
            Sample(
                done=done,
                worker=rss_kib(worker),
                fork_server=rss_kib(fork_server),
                reaper=fmean(rss_kib(reaper) for reaper in children[fork_server]),
            )
        )
    seconds = time.monotonic() - began
    everybody = tree(worker)
    return Run(
        samples=samples,
        seconds=seconds,
        processes=len(everybody),
        together_kib=sum(pss_kib(item) for item in everybody),
    )


def slope(name: str, run: Run, of: Callable[[Sample], float]) -> Figure:
    """How the memory of one part of it goes with the tasks done."""
    total = run.samples[-1].done
    warm = [sample for sample in run.samples if sample.done >= _WARM_UP * total]
    if warm[0].done == total:
        return Figure(name=name, unit=_UNIT, value=None, note="too short to measure")
    sizes = [of(sample) for sample in warm]
    some = max(1, round(_ENDS * len(sizes)))
    first, last = median(sizes[:some]), median(sizes[-some:])
    rise = linear_regression([sample.done / 1000 for sample in warm], sizes).slope
    growth = 100 * (last - first) / first
    flat = rise < FLAT_KIB and growth < GROWTH_PERCENT
    text = f"under {FLAT_KIB:g} KiB, and under {GROWTH_PERCENT:g} % in all: {growth:.1f} %"
    return Figure(
        name=name,
        unit=_UNIT,
        value=rise,
        target=Target(text, "PASS" if flat else "above"),
        details={
            "tasks": total,
            "samples": len(warm),
            "first_mb": first / 1024,
            "last_mb": last / 1024,
            "tasks_per_s": total / run.seconds,
            "processes": run.processes,
            "together_mb": run.together_kib / 1024,
        },
    )
