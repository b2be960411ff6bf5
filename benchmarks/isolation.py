"""No-op functions in children of each isolation, against bare forks and starts, in one run.

The floor of ``fork`` is ``os.fork`` and a wait in a process that has loaded what the keeper has.
The floor of ``spawn`` is a bare start of the interpreter. ``pool`` is compared with our ``spawn``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.children import BARE_PYTHON
from benchmarks.figures import Comparison, Figure, Target, at_least
from benchmarks.harness import scratch
from benchmarks.probes import Timed
from benchmarks.rounds import compare
from benchmarks.scale import Scale
from benchmarks.worker_process import ROOT, clean_environment
from longshore.adapters.process.runner import ProcessRunner
from longshore.adapters.system.clock import SystemClock
from longshore.core.child_limits import Isolation
from longshore.core.definition import Definition, RunnerKind
from longshore.ports.runner import WorkOrder

MOST_FORKS = 3.0
LEAST_TIMES_SPAWN = 10.0
_AT_ONCE = 4


def measure(scale: Scale) -> Iterator[Figure]:
    """Fork, one at a time and several at once; spawn; pool."""
    for at_once in (1, _AT_ONCE):
        forks = compare(
            scale.forks,
            scale.rounds,
            ours=partial(_ours, Isolation.FORK, scale.forks, at_once),
            floor=partial(_bare_forks, scale.forks),
        )
        cost = 100 / forks.percent
        verdict = "PASS" if cost <= MOST_FORKS else "above"
        target = Target(f"at most {MOST_FORKS:g} x fork+wait: {cost:.2f} x", verdict)
        yield forks.figure(f"isolation.fork_{at_once}", target=target)
    spawns = compare(
        scale.children,
        scale.rounds,
        ours=partial(_ours, Isolation.SPAWN, scale.children, _AT_ONCE),
        floor=partial(_bare_starts, scale.children),
    )
    yield spawns.figure("isolation.spawn", details={"at_once": _AT_ONCE})
    yield _pool(scale, spawns)


def _pool(scale: Scale, spawns: Comparison) -> Figure:
    rates = [
        scale.forks / _ours(Isolation.POOL, scale.forks, _AT_ONCE).seconds
        for _ in range(scale.rounds)
    ]
    spawned = scale.children / median(one.seconds for one in spawns.ours)
    times = median(rates) / spawned
    return Figure(
        name="isolation.pool",
        unit="/s",
        value=median(rates),
        spread=(min(rates), max(rates)),
        floor=spawned,
        percent=100 * times,
        target=at_least(LEAST_TIMES_SPAWN, times, "times spawn"),
        details={"at_once": _AT_ONCE},
    )


def _ours(isolation: Isolation, total: int, at_once: int) -> Timed:
    with scratch() as folder:
        return asyncio.run(_attempts(folder, isolation, total, at_once))


async def _attempts(folder: Path, isolation: Isolation, total: int, at_once: int) -> Timed:
    definition = Definition(name="noop", runner=RunnerKind.PYTHON, isolation=isolation)
    runner = ProcessRunner(folder, clean_environment(), SystemClock())
    numbers = iter(range(total))

    async def some() -> None:
        for number in numbers:
            attempt = await runner.start(_order(definition, number))
            async for _ in attempt.reports():
                pass
            ending = await attempt.ending()
            assert ending.failure is None, ending
            await attempt.close()

    await runner.open()
    # The first of each kind makes what the others reuse: guards, and members of the pool.
    warm = await runner.start(_order(definition, total))
    await warm.ending()
    await warm.close()
    timed = Timed()
    with timed:
        await asyncio.gather(*(some() for _ in range(at_once)))
    await runner.close()
    return timed


def _order(definition: Definition, number: int) -> WorkOrder:
    return WorkOrder(
        task_id=f"job-bench_t{number}",
        job_id="job-bench",
        key=f"t{number}",
        tenant="default",
        attempt=1,
        fence=1,
        definition=definition,
        timeout=timedelta(minutes=1),
        input={"function": "time:monotonic"},
    )


def _bare_starts(total: int) -> Timed:
    timed = Timed()
    with timed:
        for _ in range(total):
            subprocess.run(BARE_PYTHON, stdin=subprocess.DEVNULL, check=True)
    return timed


def _bare_forks(total: int) -> Timed:
    argv = [sys.executable, "-m", "benchmarks.bare_forks", str(total)]
    ran = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    timed = Timed()
    timed.seconds = float(ran.stdout)
    return timed
