"""Every error at every call: what there is to try, and what came of it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from tests.errors_everywhere.injection import InjectedFault
from tests.errors_everywhere.kinds import ErrorKind, kinds_of
from tests.errors_everywhere.run import Report, differences, run
from tests.errors_everywhere.scenarios import SCENARIOS, Scenario
from tests.errors_everywhere.sites import CallPath, Site


class Depth(Enum):
    """How much is tried; the value says what."""

    SITES = "the first call from each place"
    PATHS = "the first call from each place by each way to it"
    CALLS = "each single call"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run to be made."""

    scenario: Scenario
    atomic: bool
    fault: InjectedFault

    def __str__(self) -> str:
        ledger = "atomic" if self.atomic else "row by row"
        return f"{self.scenario.name} ({ledger}): {self.fault}"


@dataclass(slots=True)
class Summary:
    """What was tried, and what went wrong."""

    runs: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    sites: set[Site] = field(default_factory=set)
    calls: int = 0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = "".join(f"\n  {count:7,}  {kind}" for kind, count in sorted(self.errors.items()))
        return (
            f"{len(self.sites)} call sites, {self.calls:,} different calls,"
            f" {len(self.errors)} errors, {self.runs:,} runs,"
            f" {len(self.failures)} failures{kinds}"
        )


@cache
def baseline(scenario: Scenario, *, atomic: bool) -> Report:
    """The scenario without any error."""
    report = run(scenario, atomic=atomic)
    assert not report.violations, (scenario.name, report.violations)
    return report


def scenario_variants() -> Iterator[tuple[Scenario, bool]]:
    """Every scenario, on a ledger of each kind."""
    for scenario in SCENARIOS:
        for atomic in (False, True):
            yield scenario, atomic


def reached_sites() -> set[Site]:
    """The sites that call a port in some scenario."""
    return {
        call.site
        for scenario, atomic in scenario_variants()
        for call in baseline(scenario, atomic=atomic).calls
    }


def trials(depth: Depth) -> list[Trial]:
    """All that is to be tried."""
    seen: set[tuple[ErrorKind, Site, CallPath | None]] = set()
    result: list[Trial] = []
    for scenario, atomic in scenario_variants():
        numbers: Counter[tuple[Site, CallPath | None]] = Counter()
        for call in baseline(scenario, atomic=atomic).calls:
            way = call.path if depth is Depth.PATHS else None
            numbers[call.site, way] += 1
            number = numbers[call.site, way]
            for kind in kinds_of(call.site.method):
                existing = (kind, call.site, way) in seen and depth is not Depth.CALLS
                # The answer of a call that never had one cannot be lost; nor can one be made to
                # conflict that does so by itself.
                needs_answer = kind.applied or kind.name == "VersionConflict"
                if existing or not (call.answered if needs_answer else call.started):
                    continue
                seen.add((kind, call.site, way))
                result.append(Trial(scenario, atomic, InjectedFault(kind, call.site, way, number)))
    return result


def run_trial(trial: Trial) -> list[str]:
    """What is wrong with a run; nothing, if all is well."""
    fault = trial.fault
    report = run(trial.scenario, atomic=trial.atomic, fault=fault)
    expected = baseline(trial.scenario, atomic=trial.atomic).ends
    return report.violations + differences(expected, report, fault.kind)


def summarise(results: Iterator[tuple[Trial, list[str]]]) -> Summary:
    """All of them together."""
    summary = Summary()
    calls = set()
    for case, wrong in results:
        fault = case.fault
        summary.runs += 1
        summary.errors[str(fault.kind)] += 1
        summary.sites.add(fault.site)
        calls.add((case.scenario.name, case.atomic, fault.site, fault.path, fault.number))
        if wrong:
            summary.failures.append("\n    ".join([str(case), *wrong]))
    summary.calls = len(calls)
    return summary
