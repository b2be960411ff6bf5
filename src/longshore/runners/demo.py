"""The tasks of ``longshore demo``: a nightly report of made-up figures.

They do little and take their time, so that there is something to watch; what they hand to each
other and keep between attempts is real. ``analyse`` works in steps: when its worker dies, the next
attempt goes on after the last step that was kept.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from longshore.runners.context import current

_STEPS = ("clean", "count", "rank", "chart")
_STEP_S = 0.9
_CITIES = ("Rotterdam", "Bergen", "Lisbon", "Gdansk", "Cork")


def fetch(source: str, pages: int) -> dict[str, int]:
    """So many rows for each city."""
    # The same figures in each run, so that the demo can be compared with itself.
    chance = random.Random(source)  # noqa: S311 - figures, not secrets
    figures = dict.fromkeys(_CITIES, 0)
    for page in range(1, pages + 1):
        _take(0.4)
        for city in _CITIES:
            figures[city] += chance.randint(20, 60)
        _say(f"page {page} of {pages}: {sum(figures.values())} rows")
    return figures


def merge() -> dict[str, int]:
    """The figures of all sources together."""
    merged = dict.fromkeys(_CITIES, 0)
    for source, figures in current().dependency_outputs.items():
        _take(0.5)
        for city, rows in figures.items():
            merged[city] += rows
        _say(f"{source}: added {sum(figures.values())} rows")
    return merged


def analyse() -> dict[str, Any]:
    """The cities by rows, found out in steps that are kept."""
    (figures,) = current().dependency_outputs.values()
    results: dict[str, Callable[[], Any]] = {
        "clean": lambda: {city: rows for city, rows in figures.items() if rows > 0},
        "count": lambda: sum(figures.values()),
        "rank": lambda: sorted(figures, key=figures.__getitem__, reverse=True),
        "chart": lambda: {city: "#" * (rows // 40) for city, rows in figures.items()},
    }
    done = {name: _step(name, results[name]) for name in _STEPS}
    return {"total": done["count"], "order": done["rank"]}


def _step(name: str, work: Callable[[], Any]) -> Any:
    place = f"[{_STEPS.index(name) + 1}/{len(_STEPS)}] {name}"
    ran = False

    def at_length() -> Any:
        nonlocal ran
        ran = True
        _say(f"{place} ...")
        _take(_STEP_S)
        return work()

    result = current().step(name, at_length)
    if not ran:
        _say(f"{place}: kept by the attempt before, not done again")
    return result


def publish() -> str:
    """The report, in one line."""
    (analysis,) = current().dependency_outputs.values()
    _take(0.8)
    report = f"{analysis['order'][0]} leads, {analysis['total']} rows in all"
    _say(f"published: {report}")
    return report


def _take(seconds: float) -> None:
    threading.Event().wait(seconds)


def _say(text: str) -> None:
    # What a task prints is its output.
    print(text, flush=True)  # noqa: T201
