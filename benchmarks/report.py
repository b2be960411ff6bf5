"""The report: one table for people, the same as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence

from benchmarks.figures import Figure

_HEADINGS = ("figure", "ours", "spread", "floor", "% of floor", "spread", "wanted", "details")


def as_json(machine: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """Everything, by name."""
    named = {figure.name: dataclasses.asdict(figure) for figure in figures}
    return json.dumps({"machine": dict(machine), "figures": named}, indent=2)


def as_table(machine: Mapping[str, str], figures: Sequence[Figure]) -> str:
    """Everything, in columns, with the machine below."""
    lines = [_HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, tuple("-" * width for width in widths))
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    described = " · ".join(f"{name.replace('_', ' ')} {text}" for name, text in machine.items())
    return "\n".join([*table, "", described])


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
        f"{target.verdict}: {target.text}" if target else "",
        ", ".join([*details, *([figure.note] if figure.note else [])]),
    )


def _range(spread: tuple[float, float] | None) -> str:
    return "" if spread is None else f"{_number(spread[0])}–{_number(spread[1])}"


def _number(value: float) -> str:
    """Three digits that mean something, and thousands that can be read."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
