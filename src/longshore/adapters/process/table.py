"""The process table, as far as it is needed: start times, groups, memory."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
# Where it is not (macOS), signals to groups have to do.
TABLE_IS_READABLE = _PROC.is_dir()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _fields(process_id: int) -> list[str] | None:
    try:
        text = (_PROC / str(process_id) / "stat").read_text()
    except OSError:
        return None
    # The second field is the command's name in parentheses and may itself contain anything.
    return text.rpartition(")")[2].split()


def start_time_of(process_id: int) -> str | None:
    """When the process began, in ticks since boot: with its id, its identity. None: no process."""
    fields = _fields(process_id)
    return fields[19] if fields else None


def alive(process_id: int) -> bool:
    """Whether it runs: one that has ended and waits for its parent does not."""
    fields = _fields(process_id)
    return fields is not None and fields[0] not in ("Z", "X")


def group_members(leader: int) -> list[int]:
    """Ids of the living processes whose session or group is led by ``leader``."""
    found = []
    for entry in os.listdir(_PROC) if TABLE_IS_READABLE else ():
        if entry.isdigit() and (fields := _fields(int(entry))):
            state, group, session = fields[0], int(fields[2]), int(fields[3])
            if state not in ("Z", "X") and leader in (group, session):
                found.append(int(entry))
    return found


def rss_bytes_of(process_id: int) -> int:
    """Resident memory; 0 if the process is gone or cannot be seen."""
    fields = _fields(process_id)
    return int(fields[21]) * _PAGE_BYTES if fields else 0
