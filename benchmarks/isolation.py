"""No-op functions in children of each isolation, against bare forks and starts, in one run.

The floor of ``fork`` is ``os.fork`` and a wait in a process with what the fork server has loaded.
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

from benchmarks.child_slots import measure_slots
from benchmarks.children import BARE_PYTHON
from benchmarks.figures import Comparison, Figure, Target, at_least
from benchmarks.harness import scratch
from benchmarks.probes import TimingProbe
from benchmarks.rounds import compare
from benchmarks.scale import Scale
from benchmarks.worker_process import ROOT, clean_environment
from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Definition, Isolation, RunnerKind
from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.runner import AttemptSpec

MAX_TIMES_FORK = 3.0
MIN_TIMES_SPAWN = 10.0
_CONCURRENCY = 4


def measure(scale: Scale) -> Iterator[Figure]:
    """Fork, one at a time and several at once; spawn; pool."""
    for at_once in (1, _CONCURRENCY):
        forks = compare(
            scale.forks,
            scale.rounds,
            ours=partial(_in_slots, Isolation.FORK, scale.forks, at_once),
            floor=partial(_bare_forks, scale.forks),
        )
        cost = 100 / forks.percent
        outcome = "PASS" if cost <= MAX_TIMES_FORK else "above"
        target = Target(f"at most {MAX_TIMES_FORK:g} x fork+wait: {cost:.2f} x", outcome)
        yield forks.figure(f"isolation.fork_{at_once}", target=target)
    spawns = compare(
        scale.children,
        scale.rounds,
        ours=partial(_spawned, scale.children),
        floor=partial(_bare_starts, scale.children),
    )
    yield spawns.figure("isolation.spawn", details={"at_once": _CONCURRENCY})
    yield _pool(scale, spawns)


def _pool(scale: Scale, spawns: Comparison) -> Figure:
    rates = [
        scale.forks / _in_slots(Isolation.POOL, scale.forks, _CONCURRENCY).seconds
        for _ in range(scale.rounds)
    ]
    spawned = scale.children / median(item.seconds for item in spawns.ours)
    times = median(rates) / spawned
    return Figure(
        name="isolation.pool",
        unit="/s",
        value=median(rates),
        spread=(min(rates), max(rates)),
        floor=spawned,
        percent=100 * times,
        target=at_least(MIN_TIMES_SPAWN, times, "times spawn"),
        details={"at_once": _CONCURRENCY},
    )


def _in_slots(isolation: Isolation, total: int, at_once: int) -> TimingProbe:
    rate, _ = asyncio.run(measure_slots(isolation, total, printing=False, concurrency=at_once))
    timed = TimingProbe()
    timed.seconds = total / rate
    return timed


def _spawned(total: int) -> TimingProbe:
    with scratch() as folder:
        return asyncio.run(_attempts(folder, total))


async def _attempts(folder: Path, total: int) -> TimingProbe:
    definition = Definition(
        name="noop",
        runner=RunnerKind.PYTHON,
        overridable=("function",),
        isolation=Isolation.SPAWN,
    )
    runner = ProcessRunner(folder, clean_environment(), SystemClock())
    numbers = iter(range(total))

    async def some() -> None:
        for number in numbers:
            attempt = await runner.start(_attempt_spec(definition, number), deadline_ns=2**63 - 1)
            async for _ in attempt.reports():
                pass
            ending = await attempt.ending()
            assert ending.failure is None, ending
            await attempt.close()

    await runner.open()
    timed = TimingProbe()
    with timed:
        await asyncio.gather(*(some() for _ in range(_CONCURRENCY)))
    await runner.close()
    return timed


def _attempt_spec(definition: Definition, number: int) -> AttemptSpec:
    return AttemptSpec(
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


def _bare_starts(total: int) -> TimingProbe:
    timed = TimingProbe()
    with timed:
        for _ in range(total):
            subprocess.run(BARE_PYTHON, stdin=subprocess.DEVNULL, check=True)
    return timed


def _bare_forks(total: int) -> TimingProbe:
    argv = [sys.executable, "-m", "benchmarks.bare_forks", str(total)]
    ran = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    timed = TimingProbe()
    timed.seconds = float(ran.stdout)
    return timed
