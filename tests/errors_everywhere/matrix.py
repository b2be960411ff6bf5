"""Every error at every call: what there is to try, and what came of it."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cache

from tests.errors_everywhere.kinds import Kind, kinds_of
from tests.errors_everywhere.run import Report, differences, run
from tests.errors_everywhere.scenes import SCENES, Scene
from tests.errors_everywhere.sites import Site, Way
from tests.errors_everywhere.wire import Trouble


class Depth(Enum):
    """How much is tried; the value says what."""

    SITES = "the first call from each place"
    WAYS = "the first call from each place by each way to it"
    CALLS = "each single call"


@dataclass(frozen=True, slots=True)
class Case:
    """One run to be made."""

    scene: Scene
    atomic: bool
    trouble: Trouble

    def __str__(self) -> str:
        ledger = "atomic" if self.atomic else "row by row"
        return f"{self.scene.name} ({ledger}): {self.trouble}"


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
def calm(scene: Scene, *, atomic: bool) -> Report:
    """The scene without any error."""
    report = run(scene, atomic=atomic)
    assert not report.breaches, (scene.name, report.breaches)
    return report


def settings() -> Iterator[tuple[Scene, bool]]:
    """Every scene, on a ledger of each kind."""
    for scene in SCENES:
        for atomic in (False, True):
            yield scene, atomic


def reached() -> set[Site]:
    """The places that calls come from in some scene."""
    return {call.site for scene, atomic in settings() for call in calm(scene, atomic=atomic).calls}


def cases(depth: Depth) -> list[Case]:
    """All that is to be tried."""
    seen: set[tuple[Kind, Site, Way | None]] = set()
    found: list[Case] = []
    for scene, atomic in settings():
        numbers: Counter[tuple[Site, Way | None]] = Counter()
        for call in calm(scene, atomic=atomic).calls:
            way = call.way if depth is Depth.WAYS else None
            numbers[call.site, way] += 1
            number = numbers[call.site, way]
            for kind in kinds_of(call.site.method):
                known = (kind, call.site, way) in seen and depth is not Depth.CALLS
                # The answer of a call that never had one cannot be lost; nor can one be made to
                # conflict that does so by itself.
                needs_answer = kind.done or kind.name == "VersionConflict"
                if known or not (call.answered if needs_answer else call.begun):
                    continue
                seen.add((kind, call.site, way))
                found.append(Case(scene, atomic, Trouble(kind, call.site, way, number)))
    return found


def tried(case: Case) -> list[str]:
    """What is wrong with a run; nothing, if all is well."""
    trouble = case.trouble
    report = run(case.scene, atomic=case.atomic, trouble=trouble)
    expected = calm(case.scene, atomic=case.atomic).ends
    return report.breaches + differences(expected, report, trouble.kind)


def summed_up(results: Iterator[tuple[Case, list[str]]]) -> Summary:
    """All of them together."""
    summary = Summary()
    calls = set()
    for case, wrong in results:
        trouble = case.trouble
        summary.runs += 1
        summary.errors[str(trouble.kind)] += 1
        summary.sites.add(trouble.site)
        calls.add((case.scene.name, case.atomic, trouble.site, trouble.way, trouble.number))
        if wrong:
            summary.failures.append("\n    ".join([str(case), *wrong]))
    summary.calls = len(calls)
    return summary
