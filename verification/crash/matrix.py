"""The matrix: one run after the other, until each role was killed at each failpoint."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from verification.crash.failpoint_ports import PACKAGE_FAILPOINTS, PORT_FAILPOINTS
from verification.crash.killer import KillPoint
from verification.crash.processes import Role, fork_bound
from verification.crash.run import CrashReport, CrashRun, Kills
from verification.shard import Shard

FAILPOINTS: Final = (*PACKAGE_FAILPOINTS, *PORT_FAILPOINTS)
"""The names of all failpoints."""
NO_KILL: Final = KillPoint(number=0)
"""No process reaches it."""
# Threads are scheduled differently in each run, so a run may reach a few failpoints less.
_SURVIVED_IN_A_ROW = 4
_REPORT = "report.json"
_GOLDEN_RATIO = (5**0.5 - 1) / 2

OnRun = Callable[[Kills, CrashReport, Path | None], None]


class Matrix:
    """Many runs, some at a time.

    ``on_run`` is called after each run; with the run's folder if there was a violation.
    """

    def __init__(
        self, folder: Path, *, parallel: int, on_run: OnRun, shard: Shard | None = None
    ) -> None:
        self._shard = shard or Shard()
        self.failpoints = tuple(self._shard.select(FAILPOINTS))
        self._folder = folder
        self._parallel = parallel
        self._on_run = on_run
        self.runs = 0
        self.violations = 0
        self.kill_counts: Counter[str] = Counter()
        self.reached_counts: dict[Role, dict[str, int]] = {role: {} for role in Role}
        self._survived: Counter[Role] = Counter()

    @property
    def missing(self) -> list[str]:
        """Failpoints of the shard at which no process was killed."""
        return [name for name in self.failpoints if name not in self.kill_counts]

    def run_all(self) -> None:
        """One kill per run: each role at its first failpoint, its second, and so on."""
        for role in Role:
            self.run(self._all_points_of(role))
        self.run(self._missing_kills())

    def run_bounded(self, seconds: float) -> None:
        """Kill at each failpoint once, then at points spread over a run until the time is up."""
        until = time.monotonic() + seconds
        self.run([{}, {Role.SUCCESSOR: NO_KILL}])
        self.run(self._each_failpoint_once(set(Role)))
        # A worker that has a successor does not run to the end.
        self.run(self._each_failpoint_once({Role.CLIENT, Role.WORKER}))
        self.run(self._missing_kills())
        self.run(itertools.takewhile(lambda _: time.monotonic() < until, self._spread_points()))

    def _all_points_of(self, role: Role) -> Iterator[Kills]:
        for number in itertools.count(self._shard.number, self._shard.count):
            if self._survived[role] >= _SURVIVED_IN_A_ROW:
                return
            yield {role: KillPoint(number=number)}

    def _each_failpoint_once(self, roles: set[Role]) -> Iterator[Kills]:
        """Several kills per run: each missing failpoint goes to the role with the fewest kills."""
        kill_points: dict[Role, list[KillPoint]] = {role: [] for role in Role if role in roles}
        able = {
            name: [role for role in kill_points if self.reached_counts[role].get(name)]
            for name in self.missing
        }
        for name in sorted(self.missing, key=lambda name: len(able[name])):
            if able[name]:
                least = min(able[name], key=lambda role: len(kill_points[role]))
                kill_points[least].append(KillPoint(number=1, name=name))
        for kill_points_of_run in itertools.zip_longest(*kill_points.values()):
            kills = zip(kill_points, kill_points_of_run, strict=True)
            yield {role: kill_point for role, kill_point in kills if kill_point is not None}

    def _missing_kills(self) -> Iterator[Kills]:
        for name in self.missing:
            for role in Role:
                # Not every run reaches it: try twice.
                for _ in range(2 if self.reached_counts[role].get(name) else 0):
                    if name not in self.kill_counts:
                        yield {role: KillPoint(number=1, name=name)}

    def _spread_points(self) -> Iterator[Kills]:
        totals = {role: sum(self.reached_counts[role].values()) for role in Role}
        for turn in itertools.count(1):
            part = turn * _GOLDEN_RATIO % 1.0
            yield {
                role: KillPoint(number=1 + int(part * total))
                for role, total in totals.items()
                if total
            }

    def run(self, runs: Iterator[Kills] | list[Kills]) -> None:
        """Carry out these runs, ``parallel`` at a time."""
        waiting, running = iter(runs), dict[int, tuple[Kills, Path]]()
        while True:
            while len(running) < self._parallel and (kills := next(waiting, None)) is not None:
                folder = Path(tempfile.mkdtemp(dir=self._folder, prefix="longshore-crash-"))
                running[_start_run(folder, kills)] = (kills, folder)
            if not running:
                return
            process_id, _ = os.wait()
            if process_id in running:
                self._collect(*running.pop(process_id))

    def _collect(self, kills: Kills, folder: Path) -> None:
        report = CrashReport.from_json((folder / _REPORT).read_text())
        self.runs += 1
        self.violations += bool(report.problems)
        self.kill_counts.update(name for _, name in report.killed.values())
        for role in Role:
            if role in kills:
                spared = role not in report.killed
                self._survived[role] = self._survived[role] + 1 if spared else 0
            if role not in report.killed:
                counts = self.reached_counts[role]
                for name, count in report.reached.get(role, {}).items():
                    counts[name] = max(count, counts.get(name, 0))
        if not report.problems:
            shutil.rmtree(folder)
        self._on_run(kills, report, folder if report.problems else None)


def _start_run(folder: Path, kills: Kills) -> int:
    process_id = fork_bound()
    if process_id == 0:
        report = CrashReport(problems=["the run itself failed"])
        try:
            report = CrashRun(folder, kills).execute()
        except BaseException:  # noqa: BLE001 - the edge of the process
            report.problems.append(traceback.format_exc())
        finally:
            (folder / _REPORT).write_text(report.to_json())
            os._exit(0)
    return process_id


def parse_kills(texts: list[str]) -> Kills:
    """Parse kills such as ``worker@137`` or ``client@write.committed#2``."""
    kills: dict[Role, KillPoint] = {}
    for text in texts:
        role, _, kill_point = text.partition("@")
        kills[Role(role)] = KillPoint.parse(kill_point)
    return kills


def format_kills(kills: Kills) -> str:
    """Format kills as options of the command."""
    return " ".join(f"--kill {role}@{kill_point}" for role, kill_point in kills.items())
