"""Gives every call site of the AWS adapters every trouble, and looks what comes of it.

``python -m tests.aws.every_call_site`` tells each story again and again: each time every site meets
another trouble. What a site did not meet so, because another trouble was in the way, it meets
alone. First the first call of every site does, then the second, then the
last; and then so many in a row that whoever asked is told of it and has to ask again. After each
story the tables are audited, and its jobs have to end as they should. Prints how many sites and
troubles there were, and everything that was wrong. A site that no story reaches is wrong, too.
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
"""So many calls of a site fail one after the other: more than anybody but a client tries."""
# Each answer that is lost leaves a copy of the message, which is seen before the time to which the
# last one was put off: that is what a queue may do, and more than this story allows.
NOT_REPEATED = ("messages_that_are_delayed_returned_and_exhausted",)


@dataclass(slots=True)
class ScenarioRun:
    """What came of telling a story once."""

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
    """The library asks again at once: how long it waits is not ours to test."""
    with patch.object(ExponentialBackoff, "delay_amount", lambda *_: 0.0):
        yield


def run_scenario(
    folder: Path,
    scenario: Scenario,
    plan: FaultPlan = lambda _: None,
    calls: CallNumbers = first_call,
) -> ScenarioRun:
    """Tell a story while one call of each site meets the trouble that is planned for it."""
    number = next(_runs)
    clock = FakeClock(_START + number * _SCENARIO_DURATION)
    aws = FaultInjectingAws(stand_in().client_options, clock, plan, calls)
    told = ScenarioRun(scenario.__name__, aws.calls, aws.injected, aws.sites)

    async def play() -> None:
        async with asyncio.timeout(_LIMIT_S):
            async with open_harness(folder, clock, aws, f"story-{number}") as stage:
                await scenario(stage)
                told.problems += [str(item) for item in await stage.settle()]

    with without_backoff(), trace_callers():
        try:
            virtual_time.run(play())
        except (ScenarioUnfinished, TimeoutError) as error:
            told.problems.append(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever it is, the next story is told
            last = traceback.extract_tb(error.__traceback__)[-1]
            told.problems.append(
                f"ended by {error!r} in {last.name}, line {last.lineno}: {last.line}"
            )
    return told


class Campaign:
    """All stories, and what came of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = self._problems = 0
        self._sites: set[CallSite] = set()
        self._scenario_by_site: dict[CallSiteOperation, Scenario] = {}
        self._calls: Counter[CallSiteOperation] = Counter()  # in the story that tells of the site

    def run(self, scenarios: Sequence[Scenario], phases: Sequence[str]) -> int:
        """How much was wrong."""
        began = time.monotonic()
        for story in scenarios:
            told = self._run_once(story, "without trouble")
            self._sites |= told.sites
            for site, calls in told.calls.items():
                if site not in self._scenario_by_site or calls > self._calls[site]:
                    self._scenario_by_site[site], self._calls[site] = story, calls
            _print(f"{story.__name__}: {told.calls.total()} calls of {len(told.calls)} sites")
        if len(scenarios) == len(SCENARIOS):
            self._problems += _print_all("UNREACHED", unreached_sites(self._sites))
        for turn in phases:
            never = self._run_phase(turn)
            self._problems += never
        _print(f"all: {self._runs} stories, {self._problems} wrong, {_elapsed(began)}")
        return self._problems

    def _run_phase(self, phase: str) -> int:
        """Every trouble at these calls of every site; how many could not be brought about."""
        began, runs, wrong = time.monotonic(), self._runs, self._problems
        met: set[SiteFault] = set()
        wanted = {
            (site, trouble)
            for site, calls in self._calls.items()
            if phase in ("first", "repeated") or calls > 1
            for trouble in possible_faults(site)
            if phase != "repeated" or (trouble in REPEATED_FAULTS and self._repeatable_faults(site))
        }
        for story in dict.fromkeys(self._scenario_by_site.values()):
            own = {
                (site, trouble) for site, trouble in wanted if self._scenario_by_site[site] is story
            }
            met |= self._inject_all(story, own, phase)
            _print(f"{phase}, {story.__name__}: {len(own & met)} of {len(own)}, {_elapsed(began)}")
        never = wanted - met
        _print(
            f"{phase}: {len({site for site, _ in wanted})} sites, {len(wanted - never)} of"
            f" {len(wanted)} troubles, {self._runs - runs} stories, {self._problems - wrong} wrong,"
            f" {_elapsed(began)}"
        )
        lines = [f"{phase}, {site}: {trouble.name}" for site, trouble in sorted(never)]
        # How often a site is called depends on what went before: only the first call is certain.
        return _print_all("NEVER", lines) if phase == "first" else 0 * _print_all("not met", lines)

    def _repeatable_faults(self, site: CallSiteOperation) -> bool:
        return self._scenario_by_site[site].__name__ not in NOT_REPEATED

    def _inject_all(
        self, scenario: Scenario, pending: set[SiteFault], phase: str
    ) -> set[SiteFault]:
        """Tell a story until all of these have happened, or no more of them do."""
        met: set[SiteFault] = set()
        number, idle = 0, 0
        while (left := pending - met) and idle < _IDLE_RUNS:
            number += 1
            # Others each time, and not the same of all: one trouble may keep the next away.
            plan = dict(sorted(left, key=lambda pair: crc32(f"{number} {pair}".encode())))
            told = self._run_once(
                scenario, f"{phase}, telling {number}", plan.get, self._calls_in_phase(phase)
            )
            idle = 0 if told.pairs & left else idle + 1
            met |= told.pairs
        for site, trouble in sorted(pending - met):
            what = f"{phase}, {site}: {trouble.name}"
            met |= self._run_once(
                scenario, what, {site: trouble}.get, self._calls_in_phase(phase)
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
        told = run_scenario(self._folder, scenario, plan, calls)
        self._runs += 1
        self._problems += _print_all(
            "WRONG", [f"{told.scenario}, {label}: {item}" for item in told.problems]
        )
        return told


def unreached_sites(sites: set[CallSite]) -> list[str]:
    """Sites of which no story tells."""
    return sorted(str(place) for place in call_sites() - sites if str(place) not in UNREACHABLE)


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
    parser.add_argument("--turns", nargs="*", default=PHASES, choices=PHASES, help="which calls")
    parser.add_argument("--stories", nargs="*", default=[], help="parts of their names")
    asked = parser.parse_args()
    wanted = [
        story
        for story in SCENARIOS
        if not asked.stories or any(part in story.__name__ for part in asked.stories)
    ]
    logging.getLogger("longshore").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory(prefix="call-sites-") as folder:
        return 1 if Campaign(Path(folder)).run(wanted, asked.turns) else 0


if __name__ == "__main__":
    raise SystemExit(main())
