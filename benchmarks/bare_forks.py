"""The floor of a child: so many forks and waits, one after the other, in a bare template process.

A program of its own that loads nothing else: the larger a process, the dearer its forks.
"""

from __future__ import annotations

import gc
import os
import sys
import time

import longshore.execution.forkserver.server  # noqa: F401 - what the template has loaded


def fork_and_wait(total: int) -> float:
    """The seconds that it took."""
    gc.collect()
    gc.freeze()
    began = time.perf_counter()
    for _ in range(total):
        process_id = os.fork()
        if process_id == 0:
            os._exit(0)
        os.waitpid(process_id, 0)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.stdout.write(str(fork_and_wait(int(sys.argv[1]))))
