"""Linux system calls that the standard library does not offer."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable, Sequence

_PR_SET_PDEATHSIG = 1
_PR_GET_DUMPABLE = 3
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_CAPABILITY_VERSION = 0x20080522
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 256 * 1024
# Loaded before any fork: otherwise each child would pay for it.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0
_waitpid = ctypes.CDLL(None).waitpid
_capset = ctypes.CDLL(None).capset if sys.platform == "linux" else lambda *_: 0


def become_subreaper() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def has_children() -> bool:
    """Whether a child of this process is alive; waits for those that have ended.

    Without a child, ``os.waitpid`` raises, which costs more than the call itself.
    """
    while (process_id := _waitpid(-1, None, os.WNOHANG)) > 0:
        pass
    return bool(process_id == 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the parent ends; exit if it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def become_user(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Run as this user from now on, with no capability and no way back.

    The kernel forgets the signal of ``die_with_parent`` with the user, so it is set again.

    Raises:
        OSError: this process may not, or something of the earlier user is left.
    """
    parent = os.getppid()
    # In this sequence: without the user, this process may not change the groups any more.
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    # Root loses its capabilities with the user, another user with capabilities does not.
    _capset(struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))
    has_changed = (os.getresuid(), os.getresgid()) == ((uid,) * 3, (gid,) * 3)
    if not has_changed or set(os.getgroups()) != set(groups):
        raise PermissionError(f"the process could not become user {uid} alone")
    die_with_parent(parent)


def set_process_name(name: bytes) -> None:
    """Set the name that ``top`` and ``pgrep`` show; at most 15 bytes."""
    _prctl(_PR_SET_NAME, name)


def hide_memory() -> bool:
    """Deny other processes of this user access to this one's memory, and disable core files.

    Processes of one user can read each other's memory and open files: through
    ``/proc/PID/environ``, ``/proc/PID/fd``, ``/proc/PID/mem`` or a debugger. Workers, and agents'
    children, have credentials and are ancestors of tasks, so they ask the kernel to deny them this.
    Root and processes that may trace any other are not stopped. Forked processes are hidden too,
    programs that this process starts are not. The state, parent and size of this process, which its
    reaper reads, stay visible, and signals reach it as before.

    Returns:
        Whether the memory is protected; False on other systems than Linux.
    """
    if sys.platform != "linux":
        return False
    refused = _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) or _prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    return not refused


def return_large_memory() -> None:
    """Have the memory of large values returned to the system as soon as they are freed.

    The C library raises the size from which it does so whenever such a value is freed, up to 32 MB:
    after a few large bodies, a process would keep hundreds of megabytes.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, 2)  # freed memory in the middle of an arena stays there


def close_other_fds(keep: Iterable[int]) -> None:
    """Close every file descriptor from 3 on that is not in ``keep``."""
    low = 3
    for number in sorted(number for number in keep if number >= low):
        os.closerange(low, number)
        low = number + 1
    os.closerange(low, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
