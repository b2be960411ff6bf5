"""The machine that the figures are from: a rate means nothing without it."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path

import apsw

_MOUNTS = Path("/proc/self/mounts")


def machine() -> dict[str, str]:
    """Cores, load, file system of the scratch folder, versions."""
    return {
        "cores": str(os.cpu_count()),
        "load": f"{os.getloadavg()[0]:.1f}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "file_system": _file_system(Path(tempfile.gettempdir()).resolve()),
        "python": platform.python_version(),
        "sqlite": f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
    }


def _file_system(folder: Path) -> str:
    if not _MOUNTS.exists():
        return "unknown"
    mounts = [line.split()[:3] for line in _MOUNTS.read_text().splitlines()]
    around = [(place, kind) for _, place, kind in mounts if folder.is_relative_to(place)]
    return max(around, key=lambda mount: len(mount[0]))[1]
