"""Linux system calls and ``/proc`` reads that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterable

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PROC = "/proc"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Loaded before any fork: otherwise each child would pay for it.
_prctl = ctypes.CDLL(None).prctl if _LINUX else None


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    if _prctl is not None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends; also if it has ended already."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def set_process_name(name: bytes) -> None:
    """Set the name that ``top`` and ``pgrep`` show; at most 15 bytes."""
    if _prctl is not None:
        _prctl(_PR_SET_NAME, name)


def close_other_fds(keep: Iterable[int]) -> None:
    """Close every file descriptor from 3 on that is not in ``keep``."""
    low = 3
    for number in sorted(number for number in keep if number >= low):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def descendants(of: int) -> dict[int, int]:
    """Returns the live descendants of a process: process id to resident memory in bytes."""
    parents: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for entry in os.listdir(_PROC) if _LINUX else ():
        if not entry.isdigit():
            continue
        try:
            with open(f"{_PROC}/{entry}/stat", "rb") as file:
                # The process name in parentheses may contain any character.
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # the process has ended
        process_id = int(entry)
        parents[process_id] = int(fields[1])
        if fields[0] not in (b"Z", b"X"):
            sizes[process_id] = int(fields[21]) * _PAGE_BYTES
    below = {of}
    # A child may have a smaller process id than its parent: repeat until nothing is added.
    grown = True
    while grown:
        added = {child for child, parent in parents.items() if parent in below} - below
        below |= added
        grown = bool(added)
    return {process_id: sizes[process_id] for process_id in below - {of} if process_id in sizes}
