"""Figures: what a run says in the end, and how one is made from rounds of floor and ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.probes import TimingProbe


@dataclass(frozen=True, slots=True)
class Target:
    """What the figure should be, and whether it is; never a reason to fail."""

    text: str
    result: str


def at_least(bound: float, value: float, unit: str) -> Target:
    """A target from below."""
    return Target(f"at least {bound:g} {unit}", "PASS" if value >= bound else "below")


def under(bound: float, value: float, unit: str) -> Target:
    """A target from above."""
    return Target(f"under {bound:g} {unit}", "PASS" if value < bound else "above")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table, one key of the JSON."""

    name: str
    unit: str
    value: float | None  # None: could not be measured here, and ``note`` says why
    spread: tuple[float, float] | None = None  # the least and the most of the rounds
    floor: float | None = None
    percent: float | None = None  # of the floor: the median of the rounds' own ratios
    percent_spread: tuple[float, float] | None = None
    target: Target | None = None
    details: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rounds of the same number of operations, floor and ours in turns."""

    operations: int
    ours: Sequence[TimingProbe]
    floors: Sequence[TimingProbe]

    @property
    def per_commit(self) -> float:
        """Operations that went into one of our commits, on average."""
        return per_commit(self.operations, self.ours)

    @property
    def percents(self) -> list[float]:
        """How much of the floor's rate we reach, a round each."""
        pairs = zip(self.ours, self.floors, strict=True)
        return [100 * floor.seconds / ours.seconds for ours, floor in pairs]

    @property
    def percent(self) -> float:
        """The median of them."""
        return median(self.percents)

    def cpu_ms(self, rounds: Sequence[TimingProbe]) -> float:
        """CPU time an operation, in milliseconds."""
        return 1000 * median(item.cpu_s for item in rounds) / self.operations

    def figure(
        self, name: str, *, target: Target | None = None, details: Mapping[str, float] | None = None
    ) -> Figure:
        """The rate of it all."""
        rates = [self.operations / item.seconds for item in self.ours]
        return Figure(
            name=name,
            unit="/s",
            value=median(rates),
            spread=(min(rates), max(rates)),
            floor=self.operations / median(item.seconds for item in self.floors),
            percent=self.percent,
            percent_spread=(min(self.percents), max(self.percents)),
            target=target,
            details={
                "cpu_ms": self.cpu_ms(self.ours),
                "floor_cpu_ms": self.cpu_ms(self.floors),
                **(details or {}),
            },
        )


def per_commit(operations: int, rounds: Sequence[TimingProbe]) -> float:
    """Operations that went into one commit, on average over the rounds."""
    return operations * len(rounds) / max(1, sum(item.commits for item in rounds))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
