"""How much the simulator sees in a second of CPU, and what two thousand runs cost.

Beside it, what a turn of its loop costs that does nothing: the rest is the services at work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from statistics import median

from benchmarks.figures import Figure, under
from benchmarks.scale import Scale
from verification.simulation.campaign import Tally, run_seeds
from verification.simulation.loop import VirtualLoop

CI_RUNS = 2_000
CI_CPU_S = 240.0


def measure(scale: Scale) -> Iterator[Figure]:
    """Runs of the first seeds, a round each with seeds of its own."""
    size = scale.submits  # about as long a round as the others have
    tallies = [
        run_seeds(range(part * size + 1, (part + 1) * size + 1)) for part in range(scale.rounds)
    ]
    per_run = [tally.cpu_seconds / tally.runs for tally in tallies]
    seen = [tally.task_hours_per_cpu_second for tally in tallies]
    turn = _cost_of_a_turn()
    yield Figure(
        name="simulator.task_hours",
        unit="h/CPU s",
        value=median(seen),
        spread=(min(seen), max(seen)),
        details=_counts(tallies),
        note="how long tasks were under way in virtual time, for each second of CPU",
    )
    yield Figure(
        name="simulator.ci_cpu",
        unit="s",
        value=CI_RUNS * median(per_run),
        spread=(CI_RUNS * min(per_run), CI_RUNS * max(per_run)),
        target=under(CI_CPU_S, CI_RUNS * median(per_run), "s of CPU"),
        details={"cpu_ms_a_run": 1000 * median(per_run), "cpu_us_an_empty_turn": 1e6 * turn},
        note=f"what {CI_RUNS} runs cost",
    )


def _counts(tallies: list[Tally]) -> dict[str, float]:
    runs = sum(tally.runs for tally in tallies)
    return {
        "runs": runs,
        "failed": sum(len(tally.failed) for tally in tallies),
        "tasks_a_run": sum(tally.tasks for tally in tallies) / runs,
        "attempts_a_run": sum(tally.attempts for tally in tallies) / runs,
        "faults_a_run": sum(tally.fault_counts.total() for tally in tallies) / runs,
        "virtual_s_a_run": sum(tally.virtual_seconds for tally in tallies) / runs,
    }


def _cost_of_a_turn(turns: int = 20_000) -> float:
    async def nap() -> None:
        for _ in range(turns):
            await asyncio.sleep(1)

    loop = VirtualLoop()
    before = time.process_time()
    loop.run_until_complete(nap())
    spent = time.process_time() - before
    loop.close()
    return spent / turns
