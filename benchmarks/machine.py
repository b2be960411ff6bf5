"""The machine that the figures are from, and how much of it others used meanwhile.

A rate means nothing without the first, and little if the second is large.
"""

from __future__ import annotations

import os
import platform
import tempfile
import time
from pathlib import Path

import apsw

from benchmarks.probes import cpu_s

_MOUNTS = Path("/proc/self/mounts")
_TIMES = Path("/proc/stat")
# user, nice, system and, after idle and waiting for the disk, two kinds of interrupts.
_BUSY = (0, 1, 2, 5, 6)


def machine() -> dict[str, str]:
    """Cores, file system of the scratch folder, versions."""
    return {
        "cores": str(os.cpu_count()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file_system": _file_system(Path(tempfile.gettempdir()).resolve()),
        "python": platform.python_version(),
        "sqlite": f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
    }


class Neighbours:
    """The share of the machine's CPU that other programs use from now on; None if unknown."""

    def __init__(self) -> None:
        self._busy_s, self._ours_s, self._began = busy_s(), cpu_s(), time.monotonic()

    def share(self) -> float | None:
        """So far, from 0 to 1."""
        busy = busy_s()
        if busy is None or self._busy_s is None:
            return None
        others_s = busy - self._busy_s - (cpu_s() - self._ours_s)
        had_s = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, others_s / had_s))


def busy_s() -> float | None:
    """CPU time of all programs of the machine so far; None if unknown."""
    if not _TIMES.exists():
        return None
    ticks = [int(number) for number in _TIMES.read_text().split("\n", 1)[0].split()[1:]]
    return sum(ticks[path] for path in _BUSY) / os.sysconf("SC_CLK_TCK")


def _file_system(folder: Path) -> str:
    if not _MOUNTS.exists():
        return "unknown"
    mounts = [line.split()[:3] for line in _MOUNTS.read_text().splitlines()]
    around = [(path, kind) for _, path, kind in mounts if folder.is_relative_to(path)]
    return max(around, key=lambda mount: len(mount[0]))[1]
