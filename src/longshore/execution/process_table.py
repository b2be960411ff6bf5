"""Reads the process table: start times, groups, descendants, memory."""

from __future__ import annotations

import os

_PROC = "/proc"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENDED_STATES = (b"Z", b"X")


def _stat_fields(process_id: int) -> list[bytes] | None:
    try:
        with open(f"{_PROC}/{process_id}/stat", "rb") as file:
            # The second field is the command's name in parentheses and may contain any character.
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _all_processes() -> dict[int, list[bytes]]:
    """Returns the fields of all processes, by process id."""
    ids = [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]
    return {process_id: fields for process_id in ids if (fields := _stat_fields(process_id))}


def start_time_of(process_id: int) -> str | None:
    """Returns the start time in ticks since boot, or None; with the id it identifies a process."""
    fields = _stat_fields(process_id)
    return fields[19].decode() if fields else None


def is_alive(process_id: int) -> bool:
    """Whether the process runs; a zombie does not."""
    fields = _stat_fields(process_id)
    return fields is not None and fields[0] not in _ENDED_STATES


def rss_bytes_of(process_id: int) -> int:
    """Returns the resident memory; 0 if the process has ended or is not visible."""
    fields = _stat_fields(process_id)
    return int(fields[21]) * _PAGE_BYTES if fields else 0


def group_members(group_id: int) -> list[int]:
    """Returns the ids of the live processes whose session or group is ``group_id``."""
    members = []
    for process_id, fields in _all_processes().items():
        group, session = int(fields[2]), int(fields[3])
        if fields[0] not in _ENDED_STATES and group_id in (group, session):
            members.append(process_id)
    return members


def has_more_descendants(of: int, limit: int) -> bool:
    """Whether a process has more descendants than that, including those that have ended.

    This reads the descendants only, and not all processes, and of the descendants no more than is
    needed. It may miss one that is moved to another parent meanwhile.
    """
    count, waiting = 0, [of]
    try:
        while waiting and count <= limit:
            children = _children_of(waiting.pop())
            count += len(children)
            waiting += children
    except LookupError:  # the kernel was built without this file
        return len(descendants(of)) > limit
    return count > limit


def _children_of(process_id: int) -> list[int]:
    """Returns the ids of the children of each thread of the process.

    Raises:
        LookupError: this kernel does not list them.
    """
    children: list[int] = []
    folder = f"{_PROC}/{process_id}/task"
    try:
        threads = os.listdir(folder)
    except OSError:
        return children
    for thread in threads:
        try:
            with open(f"{folder}/{thread}/children", "rb") as file:
                children += map(int, file.read().split())
        except FileNotFoundError:
            if thread == threads[0] and os.path.exists(f"{folder}/{thread}/stat"):
                raise LookupError(folder) from None
        except OSError:
            continue
    return children


def descendants(of: int) -> dict[int, int]:
    """Returns the live descendants of a process: process id to resident memory in bytes."""
    return {
        process_id: int(fields[21]) * _PAGE_BYTES for process_id, fields in _live_below(of).items()
    }


def groups_below(of: int) -> set[int]:
    """Returns the process groups of the live descendants of a process."""
    return {int(fields[2]) for fields in _live_below(of).values()}


def _live_below(of: int) -> dict[int, list[bytes]]:
    """Returns the fields of the live descendants of a process, by process id."""
    processes = _all_processes()
    below: set[int] = set()
    added = {of}
    # A child may have a smaller process id than its parent: repeat until nothing is added.
    while added:
        below |= added
        added = {child for child, fields in processes.items() if int(fields[1]) in below} - below
    return {
        process_id: processes[process_id]
        for process_id in below - {of}
        if processes[process_id][0] not in _ENDED_STATES
    }


def own_capabilities() -> dict[str, int]:
    """Returns the sets of capabilities that this process can use or pass on, each as bits."""
    # As bytes: after a change of the user, the module of a codec may be out of reach.
    with open(f"{_PROC}/self/status", "rb") as file:
        fields = dict(line.split(b":", 1) for line in file)
    names = ("CapInh", "CapPrm", "CapEff", "CapAmb")
    return {name: int(fields[name.encode()], 16) for name in names}
