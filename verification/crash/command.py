"""The command: ``python -m verification.crash``."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from verification.crash.matrix import Matrix, format_kills, parse_kills
from verification.crash.run import CrashReport, Kills
from verification.shard import Shard, add_shard_option

COMMAND: Final = "python -m verification.crash"
_REPORT_INTERVAL_S = 10.0


def main(arguments: list[str]) -> int:
    """Run the matrix. Returns 0 if nothing is violated and no failpoint is missing."""
    options = _parse_arguments(arguments)
    for module in options.modules:
        importlib.import_module(module)
    show = _Reporter()
    matrix = show.matrix = Matrix(
        options.folder, parallel=options.parallel, on_run=show.on_run, shard=options.shard
    )
    if options.kills:
        matrix.run([parse_kills(options.kills)] * options.times)
        show.print_line(f"{matrix.runs} runs, {matrix.violations} with violations")
        return int(matrix.violations > 0)
    if options.bounded:
        matrix.run_bounded(options.bounded)
    else:
        matrix.run_all()
    show.print_table(options.shard)
    return int(matrix.violations > 0 or bool(matrix.missing))


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add(
        "--bounded",
        type=float,
        metavar="SECONDS",
        help="kill at each failpoint once, then at a sample until the time is up",
    )
    add(
        "--kill",
        dest="kills",
        action="append",
        default=[],
        metavar="ROLE@POINT",
        help="one run with these kills: worker@137, client@write.committed#2",
    )
    add("--times", type=int, default=1, help="number of runs with --kill")
    add(
        "--in",
        dest="folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        metavar="FOLDER",
        help="folder for the data of the runs; data of a run with a violation is not deleted",
    )
    add("--parallel", type=int, default=2, help="runs at a time")
    add(
        "--with",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="module to import first; it may plant a fault",
    )
    add_shard_option(parser)
    return parser.parse_args(arguments)


class _Reporter:
    """Prints the progress and the result."""

    matrix: Matrix

    def __init__(self) -> None:
        self._started_at = self._reported_at = time.monotonic()

    def print_line(self, text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._started_at

    def on_run(self, kills: Kills, report: CrashReport, folder: Path | None) -> None:
        """Print what is wrong with a run, and the progress every few seconds."""
        for problem in report.problems:
            self.print_line(f"VIOLATION: {problem}")
        if report.problems:
            killed = [f"{role} at {name} ({n})" for role, (n, name) in report.killed.items()]
            self.print_line(f"  killed: {', '.join(killed) or 'none'}; data folder: {folder}")
            self.print_line(f"  repeat: {COMMAND} {format_kills(kills)}")
        if time.monotonic() - self._reported_at >= _REPORT_INTERVAL_S:
            self._reported_at = time.monotonic()
            matrix = self.matrix
            self.print_line(
                f"{self._elapsed_s:5.0f} s: {matrix.runs} runs,"
                f" {len(matrix.failpoints) - len(matrix.missing)} of {len(matrix.failpoints)}"
                f" failpoints, {matrix.violations} violations;"
                f" last: {format_kills(kills)}"
            )

    def print_table(self, shard: Shard) -> None:
        """Print each failpoint with the kills there and how often each role reached it."""
        matrix = self.matrix
        roles = list(matrix.reached_counts)
        self.print_line(f"{'failpoint':32} {'killed':>7}" + "".join(f"{role:>8}" for role in roles))
        for name in matrix.failpoints:
            counts = "".join(f"{matrix.reached_counts[role].get(name, 0):8}" for role in roles)
            self.print_line(f"{name:32} {matrix.kill_counts[name]:7}{counts}")
        for name in matrix.missing:
            self.print_line(f"MISSING: no process was killed at {name}")
        total = len(matrix.failpoints)
        self.print_line(
            f"{total - len(matrix.missing)} of {total} failpoints hit ({shard});"
            f" {matrix.runs} runs, {matrix.kill_counts.total()} kills in {self._elapsed_s:.0f} s;"
            f" {matrix.violations} violations"
        )
