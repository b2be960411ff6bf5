"""From a run that failed to the least of it that fails as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from verification.simulation.faults import Fault, FaultProfile
from verification.simulation.run import RunReport, Scenario, run

COMMAND: Final = "python -m verification.simulation"
_MAX_RUNS = 300


def shrink(failed: RunReport, *, progress: Callable[[int], object] = lambda _: None) -> RunReport:
    """The shortest run that breaks the same invariant: fewer acts of people, fewer kinds of fault.

    Leaves out one thing after the other for as long as it still fails.
    """
    wanted = failed.violations[0].invariant
    best, runs = failed, 0
    again = True
    while again and runs < _MAX_RUNS:
        again = False
        for smaller in _smaller_scenarios(best):
            report = run(smaller)
            runs += 1
            progress(runs)
            if any(breach.invariant == wanted for breach in report.violations):
                best, again = report, True
                break
            if runs >= _MAX_RUNS:
                break
    return best


def _smaller_scenarios(report: RunReport) -> Iterator[Scenario]:
    scenario = report.scenario
    acts = tuple(range(report.actions_run)) if scenario.actions is None else scenario.actions
    for place in reversed(range(len(acts))):
        yield replace(scenario, actions=acts[:place] + acts[place + 1 :])
    for fault in Fault:
        # One that did not happen can be left out without a difference: it is not worth a try.
        if report.fault_counts[fault]:
            yield replace(scenario, without=scenario.without | {fault})


def repeat_command(scenario: Scenario) -> str:
    """The command line that repeats a run."""
    parts = [COMMAND, f"--seed {scenario.seed}"]
    if scenario.profile is not FaultProfile.DEFAULT:
        parts.append(f"--profile {scenario.profile}")
    if scenario.actions is not None:
        parts.append("--actions " + (",".join(map(str, scenario.actions)) or "none"))
    if scenario.without:
        names = sorted(fault.name.lower().replace("_", "-") for fault in scenario.without)
        parts.append("--without " + ",".join(names))
    return " ".join(parts)
