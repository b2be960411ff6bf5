"""Run a command to its end or for so long, and leave nobody behind.

Some of the planted faults let processes escape which the product would have killed: whoever is
orphaned below this one comes here and is ended.

``python -m tests.mutants.subprocess_limit SECONDS PROGRAM…``
"""

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")
_TIMED_OUT = 124
_PARENT = 1  # its place in what is told of a process, after the name


def main(limit_s: str, *command: str) -> int:
    """The code that the command ended with."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        return subprocess.run(command, timeout=float(limit_s), check=False).returncode
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"no end after {limit_s} s\n")
        return _TIMED_OUT
    finally:
        _kill_descendants()


def _kill_descendants() -> None:
    """Kill whoever is a child of ours by now, until nobody is: their own come to us meanwhile."""
    while True:
        for process_id in _children():
            os.kill(process_id, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    found = []
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has gone since
        if int(fields[_PARENT]) == os.getpid():
            found.append(int(entry.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
