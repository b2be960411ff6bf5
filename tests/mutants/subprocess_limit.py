"""Run a command with a time limit, and leave no process behind.

Some planted faults let processes escape that the product would have killed. This process adopts
such orphans and kills them.

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
_PARENT = 1  # index of the field in /proc/PID/stat, after the name


def main(limit_s: str, *command: str) -> int:
    """Returns the exit code of the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        return subprocess.run(command, timeout=float(limit_s), check=False).returncode
    except subprocess.TimeoutExpired:
        sys.stderr.write(f"timed out after {limit_s} s\n")
        return _TIMED_OUT
    finally:
        _kill_descendants()


def _kill_descendants() -> None:
    """Kill all children, and the orphans that they leave, until there is none."""
    while True:
        for process_id in _children():
            os.kill(process_id, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    children = []
    for entry in _PROC.glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[_PARENT]) == os.getpid():
            children.append(int(entry.parent.name))
    return children


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
