"""The command: ``python -m longshore.testing.crashing``."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from longshore.testing.crashing.matrix import FAILPOINTS, Matrix, read_kills, written
from longshore.testing.crashing.run import Kills, Report

COMMAND: Final = "python -m longshore.testing.crashing"
_TELL_EVERY_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the matrix; 0 if nothing was wrong and each failpoint was hit."""
    asked = _asked(arguments)
    for module in asked.modules:
        importlib.import_module(module)
    show = _Show()
    matrix = show.matrix = Matrix(asked.place, parallel=asked.parallel, told=show.run)
    if asked.kills:
        matrix.go([read_kills(asked.kills)] * asked.times)
        show.say(f"{matrix.runs} runs, {matrix.violations} with violations")
        return int(matrix.violations > 0)
    if asked.bounded:
        matrix.bounded(asked.bounded)
    else:
        matrix.whole()
    show.table()
    return int(matrix.violations > 0 or bool(matrix.missing))


def _asked(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add("--bounded", type=float, metavar="SECONDS", help="each failpoint once, and a sample")
    add(
        "--kill",
        dest="kills",
        action="append",
        default=[],
        metavar="ROLE@PLACE",
        help="one run: worker@137, client@write.committed#2",
    )
    add("--times", type=int, default=1, help="how often, with --kill")
    add(
        "--in",
        dest="place",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="FOLDER",
        help="where the folders of runs are made; those with a violation stay",
    )
    add("--parallel", type=int, default=2, help="runs at a time")
    add(
        "--with",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="loaded before anything else: it may plant a fault",
    )
    return parser.parse_args(arguments)


class _Show:
    """What a person sees of it."""

    matrix: Matrix

    def __init__(self) -> None:
        self._begun = self._told = time.monotonic()

    def say(self, text: str) -> None:
        """One line, at once."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._begun

    def run(self, kills: Kills, report: Report, folder: Path | None) -> None:
        """A run has ended."""
        for problem in report.problems:
            self.say(f"VIOLATION: {problem}")
        if report.problems:
            killed = [f"{role} at {name} ({n})" for role, (n, name) in report.killed.items()]
            self.say(f"  killed: {', '.join(killed) or 'nobody'}; it lies in {folder}")
            self.say(f"  once more: {COMMAND} {written(kills)}")
        if time.monotonic() - self._told >= _TELL_EVERY_S:
            self._told = time.monotonic()
            matrix = self.matrix
            self.say(
                f"{self._seconds:5.0f} s: {matrix.runs} runs, {len(matrix.killed_at)} of"
                f" {len(FAILPOINTS)} failpoints, {matrix.violations} violations;"
                f" last: {written(kills)}"
            )

    def table(self) -> None:
        """What was reached and where somebody was killed."""
        matrix = self.matrix
        roles = list(matrix.reached)
        self.say(f"{'failpoint':32} {'killed':>7}" + "".join(f"{role:>8}" for role in roles))
        for name in FAILPOINTS:
            counts = "".join(f"{matrix.reached[role].get(name, 0):8}" for role in roles)
            self.say(f"{name:32} {matrix.killed_at[name]:7}{counts}")
        for name in matrix.missing:
            self.say(f"MISSING: nobody was killed at {name}")
        hit = len(FAILPOINTS) - len(matrix.missing)
        self.say(
            f"{hit} of {len(FAILPOINTS)} failpoints hit; {matrix.runs} runs,"
            f" {matrix.killed_at.total()} kills in {self._seconds:.0f} s;"
            f" {matrix.violations} violations"
        )
