"""The task function of ``verification.freeze``: it records when it runs, until it may end.

It forks a process that leaves its session and does the same: nothing of an attempt may be alive
when the next one begins.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from longshore.execution.runners.context import current

_TICK_S = 0.01


def record_times(folder: str, key: str) -> None:
    """Append the attempt, the process and the time to a file, until the folder has an end file."""
    record, end = Path(folder, key), Path(folder, "end")
    attempt, is_below = current().attempt, os.fork() == 0
    if is_below:
        os.setsid()
    opened = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while is_below or not end.exists():
        # The time last: a process that is stopped between the two is found by its next line.
        line = f"{attempt} {os.getpid()} {int(is_below)} {time.monotonic_ns()}\n"
        os.write(opened, line.encode())
        time.sleep(_TICK_S)
    os.close(opened)
