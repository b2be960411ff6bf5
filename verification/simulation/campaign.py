"""Many runs in several processes, some of them twice to check that they are deterministic."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing import get_context
from typing import Final

from verification.simulation.faults import Fault, FaultProfile, faults_of
from verification.simulation.run import RunReport, Scenario, run
from verification.simulation.workload import ActionKind

_SEEDS_PER_CHUNK = 20
# One run in so many is run twice.
_REPEAT_EVERY = 100
# A run does not collect garbage.
_COLLECT_EVERY = 5
# With this many runs, each fault must occur at least once.
MIN_RUNS_FOR_ALL_FAULTS = 200
COMMAND: Final = "python -m verification.simulation"
_MAX_RUNS = 300


@dataclass(slots=True)
class Tally:
    """The totals of many runs."""

    runs: int = 0
    repeated: int = 0
    tasks: int = 0
    attempts: int = 0
    virtual_seconds: float = 0.0
    task_seconds: float = 0.0
    cpu_seconds: float = 0.0
    fault_counts: Counter[Fault] = field(default_factory=Counter)
    action_counts: Counter[ActionKind] = field(default_factory=Counter)
    failed: list[RunReport] = field(default_factory=list)
    nondeterministic_seeds: list[int] = field(default_factory=list)
    profile: FaultProfile = FaultProfile.DEFAULT

    def add(self, report: RunReport) -> None:
        self.runs += 1
        self.tasks += report.tasks
        self.attempts += report.attempts
        self.virtual_seconds += report.virtual_seconds
        self.task_seconds += report.task_seconds
        self.cpu_seconds += report.cpu_seconds
        self.fault_counts += report.fault_counts
        self.action_counts += report.action_counts
        if report.violations:
            self.failed.append(report)

    def __iadd__(self, other: Tally) -> Tally:
        self.runs += other.runs
        self.repeated += other.repeated
        self.tasks += other.tasks
        self.attempts += other.attempts
        self.virtual_seconds += other.virtual_seconds
        self.task_seconds += other.task_seconds
        self.cpu_seconds += other.cpu_seconds
        self.fault_counts += other.fault_counts
        self.action_counts += other.action_counts
        self.failed += other.failed
        self.nondeterministic_seeds += other.nondeterministic_seeds
        return self

    @property
    def missing_faults(self) -> list[Fault]:
        """Faults that never occurred although there were enough runs."""
        if self.runs < MIN_RUNS_FOR_ALL_FAULTS:
            return []
        return [fault for fault in faults_of(self.profile) if not self.fault_counts[fault]]

    @property
    def missing_actions(self) -> list[ActionKind]:
        """Actions that never succeeded although there were enough runs."""
        if self.runs < MIN_RUNS_FOR_ALL_FAULTS:
            return []
        return [kind for kind in ActionKind if not self.action_counts[kind]]

    @property
    def clean(self) -> bool:
        """Whether no run failed, all runs were deterministic, and each fault occurred."""
        return not (self.failed or self.nondeterministic_seeds or self.missing_faults)

    @property
    def task_hours_per_cpu_second(self) -> float:
        """Simulated hours of tasks per CPU second."""
        return self.task_seconds / 3600 / self.cpu_seconds if self.cpu_seconds else 0.0


def run_campaign(
    seeds: Iterable[int],
    *,
    profile: FaultProfile = FaultProfile.DEFAULT,
    jobs: int = 1,
    progress: Callable[[Tally], object] = lambda _: None,
    stop_after: int | None = None,
) -> Tally:
    """Run these seeds.

    Args:
        profile: The simulated backend.
        jobs: Number of processes.
        progress: Called with the totals after each chunk of runs.
        stop_after: Stop when this many runs have failed.
    """
    tally = Tally(profile=profile)
    for part in _run_chunks(seeds, jobs, profile):
        tally += part
        progress(tally)
        if stop_after is not None and len(tally.failed) >= stop_after:
            break
    return tally


def _run_chunks(seeds: Iterable[int], jobs: int, profile: FaultProfile) -> Iterator[Tally]:
    left = iter(seeds)
    chunks = iter(lambda: list(islice(left, _SEEDS_PER_CHUNK)), [])
    if jobs == 1:
        yield from (run_seeds(chunk, profile) for chunk in chunks)
        return
    # New processes: the state of this one must not matter.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running: set[Future[Tally]] = set()
        try:
            for chunk in chunks:
                running.add(pool.submit(run_seeds, chunk, profile))
                if len(running) > 2 * jobs:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            for future in running:
                yield future.result()
        finally:
            for future in running:
                future.cancel()


def run_seeds(seeds: Sequence[int], profile: FaultProfile = FaultProfile.DEFAULT) -> Tally:
    """Run a few seeds in this process."""
    tally = Tally(profile=profile)
    # The garbage collector need not look at the objects that exist already.
    gc.freeze()
    for number, seed in enumerate(seeds, start=1):
        report = run(Scenario(seed=seed, profile=profile))
        tally.add(report)
        if seed % _REPEAT_EVERY == 0:
            tally.repeated += 1
            again = run(Scenario(seed=seed, profile=profile))
            if again.digest != report.digest:
                tally.nondeterministic_seeds.append(seed)
        if number % _COLLECT_EVERY == 0:
            gc.collect()
    return tally


def shrink(failed: RunReport, *, progress: Callable[[int], object] = lambda _: None) -> RunReport:
    """Search for a smaller run, with fewer actions and faults, that violates the same invariant.

    Leaves out one action or fault after the other as long as the run still fails.
    """
    invariant = failed.violations[0].invariant
    best, runs = failed, 0
    again = True
    while again and runs < _MAX_RUNS:
        again = False
        for smaller in _smaller_scenarios(best):
            report = run(smaller)
            runs += 1
            progress(runs)
            if any(violation.invariant == invariant for violation in report.violations):
                best, again = report, True
                break
            if runs >= _MAX_RUNS:
                break
    return best


def _smaller_scenarios(report: RunReport) -> Iterator[Scenario]:
    scenario = report.scenario
    actions = tuple(range(report.actions_run)) if scenario.actions is None else scenario.actions
    for index in reversed(range(len(actions))):
        yield replace(scenario, actions=actions[:index] + actions[index + 1 :])
    for fault in Fault:
        # Leaving out a fault that did not occur changes nothing.
        if report.fault_counts[fault]:
            yield replace(scenario, without=scenario.without | {fault})


def repeat_command(scenario: Scenario) -> str:
    """The command that repeats a run."""
    parts = [COMMAND, f"--seed {scenario.seed}"]
    if scenario.profile is not FaultProfile.DEFAULT:
        parts.append(f"--profile {scenario.profile}")
    if scenario.actions is not None:
        parts.append("--actions " + (",".join(map(str, scenario.actions)) or "none"))
    if scenario.without:
        names = sorted(fault.name.lower().replace("_", "-") for fault in scenario.without)
        parts.append("--without " + ",".join(names))
    return " ".join(parts)
