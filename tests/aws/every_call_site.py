"""Injects every fault at every call site of the AWS adapters, and checks the outcome.

``python -m tests.aws.every_call_site`` runs each scenario repeatedly, with another fault at every
site each time. A fault that was not reached, because another one came before it, is injected alone.
Faults are injected into the first call of every site, then into the second, then into the last, and
then into so many calls in a row that the caller gets an error and has to repeat its call. After
each scenario the tables are audited, and its jobs must have ended as expected. Prints how many
sites and faults there were, and every problem. A site that no scenario reaches is a problem, too.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from unittest.mock import patch
from zlib import crc32

from botocore.retries.standard import ExponentialBackoff

from longshore.testing.clock import FakeClock
from tests.aws.call_sites import CallSite, call_sites
from tests.aws.call_tracing import trace_callers
from tests.aws.network_faults import (
    CallNumbers,
    CallSiteOperation,
    FaultInjectingAws,
    FaultPlan,
    NetworkFault,
    first_call,
    possible_faults,
)
from tests.aws.scenario_coverage import UNREACHABLE
from tests.aws.scenario_harness import Scenario, ScenarioUnfinished, open_harness
from tests.aws.service_scenarios import SCENARIOS
from tests.aws.stand_in import stand_in
from tests.unit.services import virtual_time

_START = datetime(2030, 1, 7, 12, tzinfo=UTC)
_SCENARIO_DURATION = timedelta(days=2)
_LIMIT_S = 300
_IDLE_RUNS = 2
_runs = count(1)

SiteFault = tuple[CallSiteOperation, NetworkFault]

PHASES = ("first", "second", "last", "repeated")
REPEATED_FAULTS = (
    NetworkFault.THROTTLED,
    NetworkFault.ERROR_AFTER,
    NetworkFault.TIMED_OUT,
    NetworkFault.RESET,
)
REPEATED_CALLS = 9
"""So many calls of a site fail one after the other: only a client tries more often."""
# Each lost response leaves a copy of the message, which is visible before the time to which the
# last one was delayed: a queue may do that, but this scenario does not allow for it.
NOT_REPEATED = ("messages_that_are_delayed_returned_and_exhausted",)


@dataclass(slots=True)
class ScenarioRun:
    """The outcome of one run of a scenario."""

    scenario: str
    calls: Counter[CallSiteOperation]
    injected: dict[CallSiteOperation, NetworkFault]
    sites: set[CallSite]
    problems: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> set[SiteFault]:
        return set(self.injected.items())


@contextmanager
def without_backoff() -> Iterator[None]:
    """The library retries at once: its waiting times are not tested here."""
    with patch.object(ExponentialBackoff, "delay_amount", lambda *_: 0.0):
        yield


def run_scenario(
    folder: Path,
    scenario: Scenario,
    plan: FaultPlan = lambda _: None,
    calls: CallNumbers = first_call,
) -> ScenarioRun:
    """Run a scenario in which one call of each site gets the fault that is planned for it."""
    number = next(_runs)
    clock = FakeClock(_START + number * _SCENARIO_DURATION)
    aws = FaultInjectingAws(stand_in().client_options, clock, plan, calls)
    result = ScenarioRun(scenario.__name__, aws.calls, aws.injected, aws.sites)

    async def run() -> None:
        async with asyncio.timeout(_LIMIT_S):
            async with open_harness(folder, clock, aws, f"trial-{number}") as stage:
                try:
                    await scenario(stage)
                    result.problems += [str(item) for item in await stage.settle()]
                finally:
                    aws.stop_injecting()

    with without_backoff(), trace_callers():
        try:
            virtual_time.run(run())
        except (ScenarioUnfinished, TimeoutError) as error:
            result.problems.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - the next scenario runs after any error
            last = traceback.extract_tb(error.__traceback__)[-1]
            result.problems.append(
                f"ended by {error!r} in {last.name}, line {last.lineno}: {last.line}"
            )
    return result


class Campaign:
    """All scenarios, and their outcomes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = self._problems = 0
        self._sites: set[CallSite] = set()
        self._scenario_by_site: dict[CallSiteOperation, Scenario] = {}
        self._calls: Counter[CallSiteOperation] = Counter()  # in the scenario chosen for the site

    def run(self, scenarios: Sequence[Scenario], phases: Sequence[str]) -> int:
        """Return the number of problems."""
        began = time.monotonic()
        for scenario in scenarios:
            result = self._run_once(scenario, "without faults")
            self._sites |= result.sites
            for site, calls in result.calls.items():
                if site not in self._scenario_by_site or calls > self._calls[site]:
                    self._scenario_by_site[site], self._calls[site] = scenario, calls
            _print(
                f"{scenario.__name__}: {result.calls.total()} calls of {len(result.calls)} sites"
            )
        if len(scenarios) == len(SCENARIOS):
            self._problems += _print_all("UNREACHED", unreached_sites(self._sites))
        for phase in phases:
            never = self._run_phase(phase)
            self._problems += never
        _print(f"all: {self._runs} runs, {self._problems} wrong, {_elapsed(began)}")
        return self._problems

    def _run_phase(self, phase: str) -> int:
        """Inject every fault at these calls of every site; return how many were never injected."""
        began, runs, wrong = time.monotonic(), self._runs, self._problems
        met: set[SiteFault] = set()
        expected = {
            (site, fault)
            for site, calls in self._calls.items()
            if phase in ("first", "repeated") or calls > 1
            for fault in possible_faults(site)
            if phase != "repeated" or (fault in REPEATED_FAULTS and self._repeatable_faults(site))
        }
        for scenario in dict.fromkeys(self._scenario_by_site.values()):
            own = {
                (site, fault)
                for site, fault in expected
                if self._scenario_by_site[site] is scenario
            }
            met |= self._inject_all(scenario, own, phase)
            _print(
                f"{phase}, {scenario.__name__}: {len(own & met)} of {len(own)}, {_elapsed(began)}"
            )
        never = expected - met
        _print(
            f"{phase}: {len({site for site, _ in expected})} sites, {len(expected - never)} of"
            f" {len(expected)} faults, {self._runs - runs} runs, {self._problems - wrong} wrong,"
            f" {_elapsed(began)}"
        )
        lines = [f"{phase}, {site}: {fault.name}" for site, fault in sorted(never)]
        # How often a site is called depends on what went before: only the first call is certain.
        return _print_all("NEVER", lines) if phase == "first" else 0 * _print_all("not met", lines)

    def _repeatable_faults(self, site: CallSiteOperation) -> bool:
        return self._scenario_by_site[site].__name__ not in NOT_REPEATED

    def _inject_all(
        self, scenario: Scenario, pending: set[SiteFault], phase: str
    ) -> set[SiteFault]:
        """Run a scenario until all these faults were injected, or no more of them are."""
        met: set[SiteFault] = set()
        number, idle = 0, 0
        while (left := pending - met) and idle < _IDLE_RUNS:
            number += 1
            # A different fault for every site in each run: one fault may prevent the next.
            plan = dict(sorted(left, key=lambda pair: crc32(f"{number} {pair}".encode())))
            result = self._run_once(
                scenario, f"{phase}, run {number}", plan.get, self._calls_in_phase(phase)
            )
            idle = 0 if result.pairs & left else idle + 1
            met |= result.pairs
        for site, fault in sorted(pending - met):
            what = f"{phase}, {site}: {fault.name}"
            met |= self._run_once(
                scenario, what, {site: fault}.get, self._calls_in_phase(phase)
            ).pairs
        return met

    def _calls_in_phase(self, phase: str) -> CallNumbers:
        match phase:
            case "second":
                return lambda _: range(1, 2)
            case "last":
                return lambda site: range(self._calls[site] - 1, self._calls[site])
            case "repeated":
                return lambda _: range(REPEATED_CALLS)
        return first_call

    def _run_once(
        self,
        scenario: Scenario,
        label: str,
        plan: FaultPlan = lambda _: None,
        calls: CallNumbers = first_call,
    ) -> ScenarioRun:
        result = run_scenario(self._folder, scenario, plan, calls)
        self._runs += 1
        self._problems += _print_all(
            "WRONG", [f"{result.scenario}, {label}: {item}" for item in result.problems]
        )
        return result


def unreached_sites(sites: set[CallSite]) -> list[str]:
    """Sites that no scenario reaches."""
    return sorted(str(site) for site in call_sites() - sites if str(site) not in UNREACHABLE)


def _elapsed(started: float) -> str:
    return f"{time.monotonic() - started:.0f} s"


def _print_all(title: str, entries: Sequence[str]) -> int:
    for line in entries:
        _print(f"{title}  {line}")
    return len(entries)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--phases", nargs="*", default=PHASES, choices=PHASES, help="which calls")
    parser.add_argument("--scenarios", nargs="*", default=[], help="parts of their names")
    options = parser.parse_args()
    chosen = [
        scenario
        for scenario in SCENARIOS
        if not options.scenarios or any(part in scenario.__name__ for part in options.scenarios)
    ]
    logging.getLogger("longshore").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="call-sites-") as folder:
        return 1 if Campaign(Path(folder)).run(chosen, options.phases) else 0


if __name__ == "__main__":
    raise SystemExit(main())
