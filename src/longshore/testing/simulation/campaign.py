"""Many runs: in several processes, counted together, some of them twice to see that they agree."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context

from longshore.testing.simulation.deeds import Deed
from longshore.testing.simulation.faults import Fault, Weather, faults_in
from longshore.testing.simulation.run import Report, Scenario, run

_CHUNK = 20
# One run in so many is made twice.
_TWICE = 100
# No run collects its own memory.
_COLLECT_EVERY = 5
# From so many runs on, a fault that never happened is a fault of the simulator.
ENOUGH_FOR_ALL_FAULTS = 200


@dataclass(slots=True)
class Tally:
    """What came of many runs."""

    runs: int = 0
    twice: int = 0
    tasks: int = 0
    attempts: int = 0
    virtual_seconds: float = 0.0
    task_seconds: float = 0.0
    cpu_seconds: float = 0.0
    happened: Counter[Fault] = field(default_factory=Counter)
    done: Counter[Deed] = field(default_factory=Counter)
    failed: list[Report] = field(default_factory=list)
    unequal: list[int] = field(default_factory=list)  # seeds that gave two different runs
    weather: Weather = Weather.ANY

    def add(self, report: Report) -> None:
        """One more run."""
        self.runs += 1
        self.tasks += report.tasks
        self.attempts += report.attempts
        self.virtual_seconds += report.virtual_seconds
        self.task_seconds += report.task_seconds
        self.cpu_seconds += report.cpu_seconds
        self.happened += report.happened
        self.done += report.done
        if report.breaches:
            self.failed.append(report)

    def __iadd__(self, other: Tally) -> Tally:
        self.runs += other.runs
        self.twice += other.twice
        self.tasks += other.tasks
        self.attempts += other.attempts
        self.virtual_seconds += other.virtual_seconds
        self.task_seconds += other.task_seconds
        self.cpu_seconds += other.cpu_seconds
        self.happened += other.happened
        self.done += other.done
        self.failed += other.failed
        self.unequal += other.unequal
        return self

    @property
    def never(self) -> list[Fault]:
        """Faults that did not happen once, though there were runs enough for it."""
        if self.runs < ENOUGH_FOR_ALL_FAULTS:
            return []
        return [fault for fault in faults_in(self.weather) if not self.happened[fault]]

    @property
    def undone(self) -> list[Deed]:
        """Acts that were not carried out once, though there were runs enough for it."""
        if self.runs < ENOUGH_FOR_ALL_FAULTS:
            return []
        return [deed for deed in Deed if not self.done[deed]]

    @property
    def clean(self) -> bool:
        """Whether nothing was found, and the simulator did what it should."""
        return not (self.failed or self.unequal or self.never)

    @property
    def task_hours_per_cpu_second(self) -> float:
        """How much of the life of tasks is seen in a second of work."""
        return self.task_seconds / 3600 / self.cpu_seconds if self.cpu_seconds else 0.0


def campaign(
    seeds: Iterable[int],
    *,
    weather: Weather = Weather.ANY,
    jobs: int = 1,
    progress: Callable[[Tally], object] = lambda _: None,
    stop_after: int | None = None,
) -> Tally:
    """Run all these seeds.

    Args:
        weather: What they stand on.
        jobs: In how many processes.
        progress: Called now and then with what there is so far.
        stop_after: End when so many runs have failed.
    """
    tally = Tally(weather=weather)
    for part in _parts(seeds, jobs, weather):
        tally += part
        progress(tally)
        if stop_after is not None and len(tally.failed) >= stop_after:
            break
    return tally


def _parts(seeds: Iterable[int], jobs: int, weather: Weather) -> Iterator[Tally]:
    left = iter(seeds)
    chunks = iter(lambda: list(islice(left, _CHUNK)), [])
    if jobs == 1:
        yield from (run_some(chunk, weather) for chunk in chunks)
        return
    # Fresh processes: what this one has loaded and done must not matter.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[Tally]] = set()
        try:
            for chunk in chunks:
                running.add(pool.submit(run_some, chunk, weather))
                if len(running) > 2 * jobs:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (one.result() for one in done)
            for one in running:
                yield one.result()
        finally:
            for one in running:
                one.cancel()


def run_some(seeds: Sequence[int], weather: Weather = Weather.ANY) -> Tally:
    """Run a few seeds in this process."""
    tally = Tally(weather=weather)
    # What is there already need not be looked at each time that memory is collected.
    gc.freeze()
    for number, seed in enumerate(seeds, start=1):
        report = run(Scenario(seed=seed, weather=weather))
        tally.add(report)
        if seed % _TWICE == 0:
            tally.twice += 1
            again = run(Scenario(seed=seed, weather=weather))
            if again.digest != report.digest:
                tally.unequal.append(seed)
        if number % _COLLECT_EVERY == 0:
            gc.collect()
    return tally
