"""The matrix: run after run, until everybody has been killed everywhere."""

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

from longshore import failpoints
from longshore.testing.crashing.executioner import Place
from longshore.testing.crashing.processes import Role, fork
from longshore.testing.crashing.run import Kills, Report, Run
from longshore.testing.crashing.watching import NAMES

FAILPOINTS: Final = (*failpoints.FAILPOINTS, *NAMES)
"""Every name there is."""
NOBODY: Final = Place(number=0)
"""No process reaches it."""
# Threads do not take turns in the same way twice, so one run may reach a few failpoints less.
_UNINTERRUPTED_IN_A_ROW = 4
_REPORT = "report.json"
_GOLDEN = (5**0.5 - 1) / 2

Told = Callable[[Kills, Report, Path | None], None]


class Matrix:
    """Many runs, some at a time.

    ``told`` hears of each run when it has ended; with the folder if there is something to see.
    """

    def __init__(self, place: Path, *, parallel: int, told: Told) -> None:
        self._place = place
        self._parallel = parallel
        self._told = told
        self.runs = 0
        self.violations = 0
        self.killed_at: Counter[str] = Counter()
        self.reached: dict[Role, dict[str, int]] = {role: {} for role in Role}
        self._uninterrupted: Counter[Role] = Counter()

    @property
    def missing(self) -> list[str]:
        """Failpoints at which nobody has been killed."""
        return [name for name in FAILPOINTS if name not in self.killed_at]

    def whole(self) -> None:
        """One kill a run: each role at its first failpoint, its second, and so on."""
        for role in Role:
            self.go(self._each_place_of(role))
        self.go(self._what_is_missing())

    def bounded(self, seconds: float) -> None:
        """Each failpoint once, then places spread over everything as long as there is time."""
        until = time.monotonic() + seconds
        self.go([{}, {Role.HEIR: NOBODY}])
        self.go(self._each_name_once(set(Role)))
        # A worker that an heir follows is not there to the end.
        self.go(self._each_name_once({Role.CLIENT, Role.WORKER}))
        self.go(self._what_is_missing())
        self.go(itertools.takewhile(lambda _: time.monotonic() < until, self._places_all_over()))

    def _each_place_of(self, role: Role) -> Iterator[Kills]:
        for number in itertools.count(1):
            if self._uninterrupted[role] >= _UNINTERRUPTED_IN_A_ROW:
                return
            yield {role: Place(number=number)}

    def _each_name_once(self, among: set[Role]) -> Iterator[Kills]:
        """What is missing, several kills a run: each name for whoever has fewest of them."""
        wanted: dict[Role, list[Place]] = {role: [] for role in Role if role in among}
        able = {
            name: [role for role in wanted if self.reached[role].get(name)] for name in self.missing
        }
        for name in sorted(self.missing, key=lambda name: len(able[name])):
            if able[name]:
                least = min(able[name], key=lambda role: len(wanted[role]))
                wanted[least].append(Place(number=1, name=name))
        for places in itertools.zip_longest(*wanted.values()):
            found = zip(wanted, places, strict=True)
            yield {role: place for role, place in found if place is not None}

    def _what_is_missing(self) -> Iterator[Kills]:
        for name in self.missing:
            for role in Role:
                # In some runs two processes do it, in others one: try again before giving up.
                for _ in range(2 if self.reached[role].get(name) else 0):
                    if name not in self.killed_at:
                        yield {role: Place(number=1, name=name)}

    def _places_all_over(self) -> Iterator[Kills]:
        totals = {role: sum(self.reached[role].values()) for role in Role}
        for turn in itertools.count(1):
            part = turn * _GOLDEN % 1.0
            yield {
                role: Place(number=1 + int(part * total)) for role, total in totals.items() if total
            }

    def go(self, wanted: Iterator[Kills] | list[Kills]) -> None:
        """Carry out all of these."""
        waiting, running = iter(wanted), dict[int, tuple[Kills, Path]]()
        while True:
            while len(running) < self._parallel and (kills := next(waiting, None)) is not None:
                folder = Path(tempfile.mkdtemp(dir=self._place, prefix="longshore-crash-"))
                running[_in_a_process(folder, kills)] = (kills, folder)
            if not running:
                return
            process_id, _ = os.wait()
            if process_id in running:
                self._take(*running.pop(process_id))

    def _take(self, kills: Kills, folder: Path) -> None:
        report = Report.from_json((folder / _REPORT).read_text())
        self.runs += 1
        self.violations += bool(report.problems)
        self.killed_at.update(name for _, name in report.killed.values())
        for role in Role:
            if role in kills:
                spared = role not in report.killed
                self._uninterrupted[role] = self._uninterrupted[role] + 1 if spared else 0
            if role not in report.killed:
                counts = self.reached[role]
                for name, count in report.reached.get(role, {}).items():
                    counts[name] = max(count, counts.get(name, 0))
        if not report.problems:
            shutil.rmtree(folder)
        self._told(kills, report, folder if report.problems else None)


def _in_a_process(folder: Path, kills: Kills) -> int:
    process_id = fork()
    if process_id == 0:
        report = Report(problems=["the run itself broke down"])
        try:
            report = Run(folder, kills).carry_out()
        except BaseException:  # noqa: BLE001 - the edge of the process
            report.problems.append(traceback.format_exc())
        finally:
            (folder / _REPORT).write_text(report.to_json())
            os._exit(0)
    return process_id


def read_kills(texts: list[str]) -> Kills:
    """Kills as they are written: ``worker@137`` or ``client@write.committed#2``."""
    kills: dict[Role, Place] = {}
    for text in texts:
        role, _, place = text.partition("@")
        kills[Role(role)] = Place.of(place)
    return kills


def written(kills: Kills) -> str:
    """The inverse of ``read_kills``, as options."""
    return " ".join(f"--kill {role}@{place}" for role, place in kills.items())
