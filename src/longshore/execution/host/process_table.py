"""Reads the process table: start times, groups, memory."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")
# Without it (macOS), processes are reached by group signals only.
PROC_IS_AVAILABLE = _PROC.is_dir()
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _stat_fields(process_id: int) -> list[str] | None:
    try:
        text = (_PROC / str(process_id) / "stat").read_text()
    except OSError:
        return None
    # The second field is the command's name in parentheses and may contain any character.
    return text.rpartition(")")[2].split()


def start_time_of(process_id: int) -> str | None:
    """Returns the start time in ticks since boot, or None; with the id it identifies a process."""
    fields = _stat_fields(process_id)
    return fields[19] if fields else None


def is_alive(process_id: int) -> bool:
    """Whether the process runs; a zombie does not."""
    fields = _stat_fields(process_id)
    return fields is not None and fields[0] not in ("Z", "X")


def group_members(group_id: int) -> list[int]:
    """Returns the ids of the live processes whose session or group is ``group_id``."""
    members = []
    for entry in os.listdir(_PROC) if PROC_IS_AVAILABLE else ():
        if entry.isdigit() and (fields := _stat_fields(int(entry))):
            state, group, session = fields[0], int(fields[2]), int(fields[3])
            if state not in ("Z", "X") and group_id in (group, session):
                members.append(int(entry))
    return members


def rss_bytes_of(process_id: int) -> int:
    """Returns the resident memory; 0 if the process has ended or is not visible."""
    fields = _stat_fields(process_id)
    return int(fields[21]) * _PAGE_BYTES if fields else 0
