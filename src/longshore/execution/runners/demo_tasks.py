"""The tasks of ``longshore demo``: a nightly report of made-up figures.

They do little and run slowly, so that there is something to watch; the results that they pass to
each other and store between attempts are real. ``analyse`` works in steps: when its worker dies,
the next attempt resumes after the last stored step.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

from longshore.execution.runners.context import current

_STEP_S = 0.9
_CITIES = ("Rotterdam", "Bergen", "Lisbon", "Gdansk", "Cork")


def fetch(source: str, pages: int) -> dict[str, int]:
    """Returns the number of rows for each city."""
    # The same figures in each run, so that the demo can be compared with itself.
    rng = random.Random(source)  # noqa: S311 - figures, not secrets
    figures = dict.fromkeys(_CITIES, 0)
    for page in range(1, pages + 1):
        _sleep(0.4)
        for city in _CITIES:
            figures[city] += rng.randint(20, 60)
        _print(f"page {page} of {pages}: {sum(figures.values())} rows")
    return figures


def merge() -> dict[str, int]:
    """Returns the sum of the figures of all sources."""
    merged = dict.fromkeys(_CITIES, 0)
    for source, figures in current().dependency_outputs.items():
        _sleep(0.5)
        for city, rows in figures.items():
            merged[city] += rows
        _print(f"{source}: added {sum(figures.values())} rows")
    return merged


def analyse() -> dict[str, Any]:
    """Returns the cities ranked by rows, computed in checkpointed steps."""
    (figures,) = current().dependency_outputs.values()
    steps: dict[str, Callable[[], Any]] = {
        "clean": lambda: {city: rows for city, rows in figures.items() if rows > 0},
        "count": lambda: sum(figures.values()),
        "rank": lambda: sorted(figures, key=figures.__getitem__, reverse=True),
        "chart": lambda: {city: "#" * (rows // 40) for city, rows in figures.items()},
    }
    done = {
        name: _run_step(f"[{number}/{len(steps)}] {name}", name, work)
        for number, (name, work) in enumerate(steps.items(), 1)
    }
    return {"total": done["count"], "order": done["rank"]}


def _run_step(label: str, name: str, work: Callable[[], Any]) -> Any:
    ran = False

    def run_slowly() -> Any:
        nonlocal ran
        ran = True
        _print(f"{label} ...")
        _sleep(_STEP_S)
        return work()

    result = current().step(name, run_slowly)
    if not ran:
        _print(f"{label}: stored by an earlier attempt, not repeated")
    return result


def publish() -> str:
    """Returns the report in one line."""
    (analysis,) = current().dependency_outputs.values()
    _sleep(0.8)
    report = f"{analysis['order'][0]} leads, {analysis['total']} rows in all"
    _print(f"published: {report}")
    return report


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


def _print(text: str) -> None:
    # What a task prints is its output.
    print(text, flush=True)  # noqa: T201
