"""Counts the failpoints that a process reaches and kills it at the chosen one."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

KILLED, REACHED = "killed", "reached"
"""Files in a run's folder: where a role was killed; how often a process reached each failpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillPoint:
    """Where to kill: at the n-th failpoint, or the n-th time that a failpoint is reached."""

    number: int
    name: str | None = None  # None: any failpoint

    @classmethod
    def parse(cls, text: str) -> KillPoint:
        """The inverse of ``str``: ``137``, or ``write.committed#3``, or ``write.committed``."""
        if text.isdecimal():
            return cls(number=int(text))
        name, _, number = text.partition("#")
        return cls(number=int(number or 1), name=name)

    def __str__(self) -> str:
        return str(self.number) if self.name is None else f"{self.name}#{self.number}"


class Killer:
    """The killer in one process; without a ``kill_point`` it only counts."""

    def __init__(self, folder: Path, role: str, kill_point: KillPoint | None) -> None:
        self._folder = folder
        self._role = role
        self._kill_point = kill_point
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reached(self, name: str) -> None:
        """Count a failpoint, reached on any thread; kill the process if it is the chosen one."""
        # No other thread may pass a failpoint while the process is being killed.
        with self._lock:
            self._counts[name] += 1
            if self._kill_point is not None and self._is_kill_point(name, self._kill_point):
                self._kill(name)

    def _is_kill_point(self, name: str, kill_point: KillPoint) -> bool:
        if kill_point.name is None:
            return self._counts.total() == kill_point.number
        return kill_point.name == name and self._counts[name] == kill_point.number

    def _kill(self, name: str) -> None:
        kill = {"number": self._counts.total(), "name": name}
        (self._folder / f"{KILLED}-{self._role}.json").write_text(json.dumps(kill))
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def save_counts(self) -> None:
        """Write the counts of a process that was not killed to a file."""
        path = self._folder / f"{REACHED}-{self._role}-{os.getpid()}.json"
        path.write_text(json.dumps(self._counts))
