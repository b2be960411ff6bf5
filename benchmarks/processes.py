"""Facts about processes from the kernel: their descendants, memory and CPU time."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Of the fields after the name: its own time, and that of its children that were waited for.
_PARENT, _CPU, _CHILDREN_CPU = 1, slice(11, 15), slice(13, 15)


def children_of_all() -> dict[int, list[int]]:
    """The children of every process of the machine that has any."""
    result: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*"):
        if fields := _stat(int(entry.name)):
            result[int(fields[_PARENT])].append(int(entry.name))
    return result


def tree(top: int) -> list[int]:
    """A process, and all below it."""
    children = children_of_all()
    result = [top]
    for item in result:
        result += children[item]
    return result


def rss_kib(process_id: int) -> float:
    """Resident memory, with what is shared."""
    return _rollup_kib(process_id, "Rss")


def pss_kib(process_id: int) -> float:
    """Resident memory, with the process's part of what is shared."""
    return _rollup_kib(process_id, "Pss")


def tree_cpu_s(top: int) -> float:
    """CPU time of a process and all below it, also of those who have ended."""
    fields = (_stat(item) for item in tree(top))
    return sum(sum(map(int, result[_CPU])) for result in fields) / _TICKS_PER_S


def descendants_cpu_s(top: int) -> float:
    """CPU time of all below a process, also of those who have ended."""
    _, *below = tree(top)
    ticks = sum(map(int, _stat(top)[_CHILDREN_CPU]))
    ticks += sum(sum(map(int, _stat(item)[_CPU])) for item in below)
    return ticks / _TICKS_PER_S


def name_of(process_id: int) -> str:
    """What it is called; nothing, if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process_id}/comm").read_text().strip()
    return ""


def _stat(process_id: int) -> list[str]:
    with contextlib.suppress(OSError):  # it has gone since
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return []


def _rollup_kib(process_id: int, name: str) -> float:
    lines = Path(f"/proc/{process_id}/smaps_rollup").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
