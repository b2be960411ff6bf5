"""Starts processes, accounts for their CPU time, and ends all of them at the end.

This process becomes a subreaper, so that processes whose parent has ended stay below it: nothing
that a peer starts is missing from the accounting, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from benchmarks.processes import children_of_all, descendants_cpu_s, pss_kib, tree

_PR_SET_CHILD_SUBREAPER = 36
_LOG_TAIL = 1_500
_GRACE_S = 5.0
_POLL_S = 0.005
# The time of day and the name of a call, as `strace -f -ttt` prints them.
_TRACED = re.compile(r"^(?:\d+ +)?(\d+\.\d+) (\w+)\(", re.MULTILINE)


class MeasurementFailed(Exception):
    """A peer did not do what was asked of it."""


class Process:
    """A process that was started here, with all its descendants."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.id = process.pid
        self.log = log

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)

    def kill(self) -> None:
        """End it and all its descendants at once."""
        if self.exit_code is None:
            for process_id in tree(self.id):
                kill_process(process_id)
        self._process.wait()

    def ask_to_stop(self, number: int = signal.SIGTERM) -> None:
        if self.exit_code is None:
            self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask it to end; kill what is left of it after a while."""
        descendants = tree(self.id)[1:] if self.exit_code is None else []
        self.ask_to_stop(number)
        self.wait(_GRACE_S)
        self.kill()
        for process_id in set(descendants) & set(tree(os.getpid())):
            kill_process(process_id)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-_LOG_TAIL:]


class Launcher:
    """Starts processes; those that are left when its block ends are killed."""

    def __enter__(self) -> Self:
        self._not_ours = set(children_of_all()[os.getpid()])
        _adopt_orphans(enabled=True)
        # Also if this process is terminated.
        self._previous = signal.signal(signal.SIGTERM, _exit)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGTERM, self._previous)
        # Repeatedly: the children of a process that was killed become ours.
        while ours := set(children_of_all()[os.getpid()]) - self._not_ours:
            for process_id in ours:
                for item in tree(process_id):
                    kill_process(item)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(process_id, 0)
        _adopt_orphans(enabled=False)

    def start(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        log: Path,
        trace: Path | None = None,
        calls: str = "all",
    ) -> Process:
        """Start a command in a session of its own; with ``trace``, under strace.

        Raises:
            MeasurementFailed: strace is needed and missing.
        """
        if trace is not None:
            if shutil.which("strace") is None:
                message = "strace is not installed"
                raise MeasurementFailed(message)
            # -D: the command itself is our child, not strace.
            traced = ["strace", "-D", "-f", "-ttt", "--seccomp-bpf", "-e", f"trace={calls}"]
            argv = [*traced, "-o", str(trace), *argv]
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return Process(process, log)


def cpu_below_s() -> float:
    """CPU time of everything that this process has started, also of what has ended."""
    return descendants_cpu_s(os.getpid())


def pss_below_mib() -> float:
    """Memory of all descendants; what they share is counted once."""
    total_kib = 0.0
    for process_id in tree(os.getpid())[1:]:
        with contextlib.suppress(OSError, StopIteration):  # it has ended since
            total_kib += pss_kib(process_id)
    return total_kib / 1024


def wait_until(condition: Callable[[], Any], timeout_s: float, poll_s: float = _POLL_S) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def kill_process(process_id: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


def traced_times_s(trace: Path) -> list[float]:
    """The time of day of every call in a trace."""
    if not trace.exists():
        return []
    return [float(time_s) for time_s, _ in _TRACED.findall(trace.read_text(errors="replace"))]


def _adopt_orphans(*, enabled: bool) -> None:
    """Whether a process whose parent ends becomes a child of this one (on Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(enabled), 0, 0, 0)


def _exit(_number: int, _frame: FrameType | None) -> None:
    raise SystemExit(143)
