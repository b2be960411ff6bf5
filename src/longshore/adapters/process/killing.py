"""Ending what a child has started: its session and its process group, to the last member.

A signal is not an end: whoever says that nothing runs any more has to wait until the kernel says
so. The wait is short and has a limit, because a process that hangs in a system call ends when that
returns, and nobody can hurry it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterable
from datetime import timedelta

from longshore.adapters.process.table import TABLE_IS_READABLE, group_members, start_time_of

PATIENCE = timedelta(seconds=1)
_ROUNDS = 3


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send a signal to the group of a leader that has not been waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def kill_group(leader: int, *, started: str | None = None) -> None:
    """Kill everybody whose session or group is led by ``leader``, and wait for their end.

    Args:
        started: When the leader began; if its number has gone to somebody else since, nothing is
            done. None: the caller knows that it has not.
    """
    current = start_time_of(leader)
    if started is not None and current is not None and current != started:
        return
    if not TABLE_IS_READABLE:
        signal_group(leader, signal.SIGKILL)
        return
    # One that was just forking may have left another: look again until there is nobody. Without a
    # living member the number may belong to another group by now.
    for _ in range(_ROUNDS):
        if not (members := group_members(leader)):
            return
        signal_group(leader, signal.SIGKILL)
        for process_id in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, signal.SIGKILL)
        _wait_for_end(members)


def _wait_for_end(process_ids: Iterable[int]) -> None:
    """Return when all of them have ended, or after ``PATIENCE``."""
    ends = select.poll()
    with contextlib.ExitStack() as opened:
        left = 0
        for process_id in process_ids:
            with contextlib.suppress(OSError):  # it has ended, and somebody has waited for it
                end = os.pidfd_open(process_id)
                opened.callback(os.close, end)
                ends.register(end, select.POLLIN)
                left += 1
        until = time.monotonic() + PATIENCE.total_seconds()
        while left and (patience := until - time.monotonic()) > 0:
            for end, _ in ends.poll(patience * 1000):
                ends.unregister(end)
                left -= 1
