"""The report: one table for people, the same as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.figures import Figure

_HEADINGS = ("figure", "ours", "spread", "floor", "% of floor", "spread", "target", "details")


@dataclass(slots=True, kw_only=True)
class Report:
    """What a run has found so far."""

    machine: Mapping[str, str]
    figures: list[Figure] = field(default_factory=list)
    used_by_others: dict[str, float | None] = field(default_factory=dict)  # of the CPU, 0 to 1

    def as_json(self) -> str:
        """Everything, by name."""
        document = {
            "machine": dict(self.machine),
            "used_by_others": self.used_by_others,
            "figures": {figure.name: dataclasses.asdict(figure) for figure in self.figures},
        }
        return json.dumps(document, indent=2)

    def as_table(self) -> str:
        """Everything, in columns, with the machine below."""
        lines = [_HEADINGS, *(_cells(figure) for figure in self.figures)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        lines.insert(1, tuple("-" * width for width in widths))
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*table, "", self._others(), self._machine()])

    def _others(self) -> str:
        shares = [f"{n} {s:.0%}" for n, s in self.used_by_others.items() if s is not None]
        return f"CPU that others used meanwhile: {', '.join(shares) or 'unknown'}"

    def _machine(self) -> str:
        named = (f"{name.replace('_', ' ')} {text}" for name, text in self.machine.items())
        return " · ".join(named)


def _cells(figure: Figure) -> tuple[str, ...]:
    details = [f"{name.replace('_', ' ')} {_number(n)}" for name, n in figure.details.items()]
    target = figure.target
    return (
        figure.name,
        "–" if figure.value is None else f"{_number(figure.value)} {figure.unit}",
        _range(figure.spread),
        "" if figure.floor is None else f"{_number(figure.floor)} {figure.unit}",
        "" if figure.percent is None else f"{figure.percent:.0f} %",
        _range(figure.percent_spread),
        f"{target.result}: {target.text}" if target else "",
        ", ".join([*details, *([figure.note] if figure.note else [])]),
    )


def _range(spread: tuple[float, float] | None) -> str:
    return "" if spread is None else f"{_number(spread[0])}–{_number(spread[1])}"


def _number(value: float) -> str:
    """Three digits that mean something, and thousands that can be read."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
