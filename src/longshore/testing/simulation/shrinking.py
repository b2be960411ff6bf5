"""From a run that failed to the least of it that fails as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from longshore.testing.simulation.faults import Fault, Weather
from longshore.testing.simulation.run import Report, Scenario, run

_MOST_RUNS = 300


def shrunk(failed: Report, *, progress: Callable[[int], object] = lambda _: None) -> Report:
    """The shortest run that breaks the same invariant: fewer acts of people, fewer kinds of fault.

    Leaves out one thing after the other for as long as it still fails.
    """
    wanted = failed.breaches[0].invariant
    best, runs = failed, 0
    again = True
    while again and runs < _MOST_RUNS:
        again = False
        for smaller in _smaller(best):
            report = run(smaller)
            runs += 1
            progress(runs)
            if any(breach.invariant == wanted for breach in report.breaches):
                best, again = report, True
                break
            if runs >= _MOST_RUNS:
                break
    return best


def _smaller(report: Report) -> Iterator[Scenario]:
    scenario = report.scenario
    acts = tuple(range(report.acts)) if scenario.acts is None else scenario.acts
    for place in reversed(range(len(acts))):
        yield replace(scenario, acts=acts[:place] + acts[place + 1 :])
    for fault in Fault:
        # One that did not happen can be left out without a difference: it is not worth a try.
        if report.happened[fault]:
            yield replace(scenario, without=scenario.without | {fault})


def repeat_command(scenario: Scenario) -> str:
    """The command line that repeats a run."""
    parts = ["longshore sim", f"--seed {scenario.seed}"]
    if scenario.weather is not Weather.ANY:
        parts.append(f"--weather {scenario.weather}")
    if scenario.acts is not None:
        parts.append("--acts " + (",".join(map(str, scenario.acts)) or "none"))
    if scenario.without:
        names = sorted(fault.name.lower().replace("_", "-") for fault in scenario.without)
        parts.append("--without " + ",".join(names))
    return " ".join(parts)
