"""The child: the process that executes an attempt, from the fork to its exit.

A child leads its own session and dies with its reaper. It is forked before there is an attempt for
it, and waits. Before it reads the attempt's spec it closes every file descriptor of other
processes, so that the task cannot reach them.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import io
import json
import os
import resource
import signal
import socket
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, NoReturn

from longshore.core.definitions.definition import Isolation
from longshore.execution.forkserver.linux import close_other_fds, die_with_parent, set_process_name
from longshore.execution.protocol import CHANNEL_FD, FDS_PER_START, REPLIES_FD
from longshore.execution.runners.channel import Channel
from longshore.execution.runners.executor import execute_attempt, run_and_report

_OUTPUT, _ERRORS = 1, 2
_CHILD_FDS = (_OUTPUT, _ERRORS, CHANNEL_FD, REPLIES_FD)
_FIRST_FREE_FD = REPLIES_FD + 1
_CHUNK_BYTES = 64 * 1024
_START = b"\n"
PREFORKED_NAME, _RUNNING_NAME = b"longshore-idle", b"longshore-task"
_RLIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
}
# Between SIGXCPU, which a task can handle, and SIGKILL.
_CPU_GRACE_S = 5
# Python ignores these signals, and a program started with exec would inherit that.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

WARMUP_RUNS = 10
"""More runs than the interpreter needs before it specialises a function."""

_WARMUP_SPEC = {
    "runner": "python",
    "options": {},
    "folder": os.curdir,
    "task_id": "",
    "job_id": "",
    "attempt": 0,
    "input": {"function": "os:getpid", "path": []},
    "dependency_outputs": {},
    "checkpoints": {},
    "feedback": None,
    "previous_output": None,
}


class PreforkedChild:
    """A reaper's handle on a child that waits for its attempt.

    A forked process pays most when it first touches its memory, so everything that is the same for
    every attempt is done before there is one.

    Raises:
        OSError: no process can be forked.
    """

    def __init__(self, begin: Callable[[list[int]], NoReturn]) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reaper = os.getpid()
        with far, contextlib.ExitStack() as close_unless_forked:
            close_unless_forked.enter_context(near)
            self.process_id = os.fork()
            if self.process_id == 0:
                _wait_for_start(reaper, far, begin)
            close_unless_forked.pop_all()
        self._socket = near

    def start(self, files: Sequence[int]) -> None:
        """Send the child its file descriptors, which starts it.

        Raises:
            OSError: the child died while it waited.
        """
        with self._socket:
            socket.send_fds(self._socket, [_START], list(files))


def _wait_for_start(
    reaper: int, far: socket.socket, begin: Callable[[list[int]], NoReturn]
) -> NoReturn:
    os.setsid()
    die_with_parent(reaper)
    set_process_name(PREFORKED_NAME)
    # A received descriptor must not get a number to which another one will be moved.
    null_fd = os.open(os.devnull, os.O_RDWR)
    for fd in (CHANNEL_FD, REPLIES_FD):
        os.dup2(null_fd, fd)
    close_other_fds({CHANNEL_FD, REPLIES_FD, far.fileno()})
    warm_up(1)
    message, files, _, _ = socket.recv_fds(far, len(_START), FDS_PER_START)
    if not message:
        os._exit(0)  # the reaper has ended
    begin(files)


def run_in_fork(main: Callable[[], NoReturn]) -> NoReturn:
    """Run ``main`` in this fork and exit; never return to the code of the parent process."""
    try:
        # The wake-up descriptor belongs to the fork server.
        signal.set_wakeup_fd(-1)
        main()
    except BaseException:  # noqa: BLE001 - the outermost frame of this process: log it
        traceback.print_exc()
    finally:
        os._exit(os.EX_SOFTWARE)


def warm_up(times: int) -> None:
    """Execute a spec that does nothing, ``times`` times, with its reports discarded.

    The interpreter caches in memory what it meets (the method a name resolves to, the type an
    instruction gets). Children share caches filled before the fork; a cache filled in the child
    copies a memory page.
    """
    null_fd = os.open(os.devnull, os.O_RDWR)
    channel = Channel(null_fd, null_fd)
    for _ in range(times):
        copy_context().run(execute_attempt, json.loads(json.dumps(_WARMUP_SPEC)), channel)
    os.close(null_fd)


def run_child(files: Sequence[int], environment: Mapping[str, str]) -> NoReturn:
    """Execute the attempt and exit the process with its exit code; never returns.

    Args:
        environment: The return value of ``reset_process_state``.
    """
    set_process_name(_RUNNING_NAME)
    install_fds(files)
    close_other_fds(range(_FIRST_FREE_FD))
    channel = Channel(CHANNEL_FD, REPLIES_FD)
    code = run_and_report(channel, lambda: _run_spec(receive_spec(environment), channel))
    exit_process(code)


def _run_spec(spec: dict[str, Any], channel: Channel) -> None:
    if spec["pty"]:
        fcntl.ioctl(_OUTPUT, termios.TIOCSCTTY, 0)
        os.dup2(_OUTPUT, 0)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Python does this when it starts on a terminal; this process was started without one.
            sys.stdout.reconfigure(line_buffering=True)
    command = spec["runner"] == "command"
    cold = spec["isolation"] == Isolation.SPAWN and not command
    path = _write_spec_file(spec) if cold else ""
    apply_resource_limits(spec["resources"])
    if command or cold:
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    if cold:
        program = [sys.executable, "-m", "longshore.execution.runners", path]
        os.execve(sys.executable, program, spec["environment"])  # noqa: S606
    exit_process(execute_attempt(spec, channel))


def reset_process_state() -> dict[str, str]:
    """Reset a reaper's process once, for all the children that it will fork.

    Drops the signal handlers and exit functions that the loaded modules have set up, and occupies
    the low file descriptors, so that no received pipe gets a number to which another one will be
    moved.

    Returns:
        The environment with which a child starts.
    """
    atexit._clear()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while os.open(os.devnull, os.O_RDWR) < _FIRST_FREE_FD:
        pass
    return current_environment()


def install_fds(files: Sequence[int]) -> None:
    """Move the four pipes to the numbers where a child expects them, replacing what is there."""
    for source, target in zip(files, _CHILD_FDS, strict=True):
        os.dup2(source, target)


def receive_spec(environment: Mapping[str, str]) -> dict[str, Any]:
    """Wait for the spec, the first line of the replies, and apply its folder and environment.

    Args:
        environment: The current environment of this process.

    Returns:
        The spec.
    """
    chunks = [os.read(REPLIES_FD, _CHUNK_BYTES)]
    # The worker replies only to requests, so nothing follows the first line yet.
    while chunks[-1] and not chunks[-1].endswith(b"\n"):
        chunks.append(os.read(REPLIES_FD, _CHUNK_BYTES))
    if not chunks[-1]:
        os._exit(os.EX_NOINPUT)  # the worker has abandoned the attempt or has ended
    spec: dict[str, Any] = json.loads(b"".join(chunks).decode())
    os.chdir(spec["folder"])
    _apply_environment(spec["environment"], environment)
    return spec


def current_environment() -> dict[str, str]:
    """Returns a copy of this process's environment variables."""
    return dict(os.environ)  # noqa: TID251 - passed on to the task, not read as settings


def _apply_environment(target: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Set exactly the target variables; most are set already, and those are left untouched."""
    for name in current.keys() - target.keys():
        del os.environ[name]  # noqa: TID251
    for name, value in target.items():
        if current.get(name) != value:
            os.environ[name] = value  # noqa: TID251


class TaskEnvironment:
    """The environment variables of this process, set anew for each of its tasks.

    Attributes:
        base: What every task finds, besides its own variables.
    """

    def __init__(self) -> None:
        self.base = current_environment()
        # The names and values as the C library has them: reading them as text would cost more
        # than a small task. A private name of the standard library.
        self._raw: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # noqa: TID251
        self._applied = dict(self._raw)
        self._has_own_variables = False

    def apply(
        self, attempt_variables: Mapping[bytes, bytes], variables: Mapping[str, str] | None
    ) -> None:
        """Set exactly the base, ``variables`` and ``attempt_variables``."""
        raw, applied = self._raw, self._applied
        if variables or self._has_own_variables or raw != applied:
            _apply_environment({**self.base, **(variables or {})}, current_environment())
            applied = self._applied = dict(raw)
            self._has_own_variables = bool(variables)
        for name, value in attempt_variables.items():
            if raw.get(name) != value:
                os.putenv(name, value)
                raw[name] = applied[name] = value

    def restore(self) -> None:
        """Set exactly the base."""
        _apply_environment(self.base, current_environment())


def _write_spec_file(spec: Mapping[str, Any]) -> str:
    """Write the spec to a file for the interpreter that replaces this one. Returns its path."""
    path = os.path.join(spec["folder"], "spec.json")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump(spec, file)
    return path


def apply_resource_limits(limits: Mapping[str, int | None]) -> None:
    """Make the kernel enforce the limits on this process and the processes that it starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in _RLIMITS.items():
        soft = limits.get(name)
        if soft is not None:
            _, ceiling = resource.getrlimit(kind)
            hard = soft + _CPU_GRACE_S if kind == resource.RLIMIT_CPU else soft
            if ceiling != resource.RLIM_INFINITY:
                soft, hard = min(soft, ceiling), min(hard, ceiling)
            resource.setrlimit(kind, (soft, hard))


def exit_process(code: int) -> NoReturn:
    """Exit as an interpreter does, but skip what belongs to the process it was forked from."""
    # Private names of the standard library; multiprocessing ends its forks with them too. Most
    # children need neither, and pay for each page of memory that they use for the first time.
    if threading.active_count() > 1:
        with contextlib.suppress(Exception):
            threading._shutdown()  # type: ignore[attr-defined]
    if atexit._ncallbacks():
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)
