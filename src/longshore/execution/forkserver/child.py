"""The child: the process that executes an attempt, from the fork to its exit.

Before it reads the attempt's spec it closes every file descriptor of other processes, so that the
task cannot reach them.
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
from types import CodeType, FunctionType
from typing import Any, NoReturn

from longshore.core.definitions.definition import Isolation
from longshore.execution.attempt_settings import command_settings, python_settings
from longshore.execution.linux import become_user, close_other_fds, set_process_name
from longshore.execution.process_table import own_capabilities
from longshore.execution.protocol import CHANNEL_FD, FDS_PER_ATTEMPT, REPLIES_FD, SLOT_VARIABLE
from longshore.execution.runners.channel import Channel
from longshore.execution.runners.executor import EXIT_OK, execute_attempt, run_and_report
from longshore.execution.slot_page import SlotPage
from longshore.execution.slot_protocol import ATTEMPT

_OUTPUT, _ERRORS = 1, 2
_CHILD_FDS = (_OUTPUT, _ERRORS, CHANNEL_FD, REPLIES_FD)
_FIRST_FREE_FD = REPLIES_FD + 1
_RLIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
}
# What the standard library calls before and after each fork because of threads: private names, like
# those in ``exit_process``. All of a module or none, as they acquire and release the same lock.
_AT_FORK = {
    "threading": {"_after_fork"},
    "logging": {"_acquireLock", "_releaseLock", "_after_at_fork_child_reinit_locks"},
}
_DO_NOTHING = (lambda: None).__code__
_disabled: dict[FunctionType, CodeType] = {}
# Between SIGXCPU, which a task can handle, and SIGKILL.
_CPU_GRACE_S = 5
# Python ignores these signals, and a program started with exec would inherit that.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def run_in_fork(main: Callable[[], NoReturn]) -> NoReturn:
    """Run ``main`` in this fork and exit; never return to the code of the parent process."""
    try:
        main()
    except BaseException:  # noqa: BLE001 - the outermost frame of this process: log it
        traceback.print_exc()
    finally:
        os._exit(os.EX_SOFTWARE)


def set_thread_reset(*, enabled: bool) -> None:
    """Set whether forks of this process reset the locks and the state of ``threading``.

    A process with one thread has nothing to reset, and a fork copies every page of memory that the
    reset touches: with ``logging`` loaded, that is a third of what it costs.
    """
    if not enabled:
        for module, names in _AT_FORK.items():
            functions = vars(sys.modules.get(module, object))
            if functions.keys() >= names:
                _disabled.update((functions[name], functions[name].__code__) for name in names)
    for function, code in _disabled.items():
        function.__code__ = code if enabled else _DO_NOTHING


def reset_process_state() -> None:
    """Drop the signal handlers and exit functions of the fork server and its loaded modules."""
    signal.set_wakeup_fd(-1)
    atexit._clear()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


class AttemptChild:
    """The children of a slot for attempts: each takes one, with files of its own.

    Args:
        tasks: The child's end of the socket over which attempts come.
        close_fds: What a child closes: the files that only its reaper needs.
    """

    def __init__(self, tasks: int, page: SlotPage, close_fds: Sequence[int]) -> None:
        self._tasks = socket.socket(fileno=tasks)
        self._page = page
        self._close_fds = close_fds

    def run(self, generation: int) -> NoReturn:
        """Wait for an attempt and execute it; never returns."""
        set_thread_reset(enabled=True)
        set_process_name(b"longshore-idle")
        for file in self._close_fds:
            os.close(file)
        while True:
            packet, files, _, _ = socket.recv_fds(self._tasks, ATTEMPT.size, FDS_PER_ATTEMPT)
            if not packet:
                exit_process(EXIT_OK)  # the worker has ended
            meant_for, fence = ATTEMPT.unpack(packet)
            if meant_for == generation:
                break
            for file in files:
                os.close(file)
        if self._page.begin(1, fence):
            self._page.close()  # its reaper relies on it
            _run_attempt(files)
        exit_process(EXIT_OK)  # too late


def _run_attempt(files: Sequence[int]) -> NoReturn:
    """Execute the attempt and exit the process with its exit code; never returns.

    Args:
        files: The attempt's spec, and the child's ends of its pipes.
    """
    set_process_name(b"longshore-task")
    # Above the numbers where a child expects them.
    spec_file, *ends = [fcntl.fcntl(file, fcntl.F_DUPFD, _FIRST_FREE_FD) for file in files]
    for source, target in zip(ends, _CHILD_FDS, strict=True):
        os.dup2(source, target)
    spec = os.pread(spec_file, os.fstat(spec_file).st_size, 0)
    close_other_fds(range(_FIRST_FREE_FD))
    channel = Channel(CHANNEL_FD, REPLIES_FD)
    channel.send("begun", pid=os.getpid())
    exit_process(run_and_report(channel, lambda: _run_spec(json.loads(spec), channel)))


def _run_spec(spec: dict[str, Any], channel: Channel) -> None:
    if user := spec["user"]:
        # A program may open them again by their names, such as /dev/stdout.
        for file in _CHILD_FDS:
            os.fchown(file, user["uid"], user["gid"])
        become_user(user["uid"], user["gid"], user["groups"])
        if any(own_capabilities().values()):
            error = "the attempt could not give up the capabilities of its worker"
            raise PermissionError(error)
    os.chdir(spec["folder"])
    command = spec["runner"] == "command"
    spec["settings"] = settings = {}
    if command or spec["runner"] == "python":
        check = command_settings if command else python_settings
        spec["settings"] = settings = check(spec, spec["input"])
    if command and settings.get("cwd"):
        spec["variables"]["PWD"] = os.path.join(spec["folder"], str(settings["cwd"]))
    # Also for the processes that an agent starts.
    spec["environment"] |= settings.get("env", {}) | spec["variables"]
    _apply_environment(spec["environment"])
    if spec["pty"]:
        fcntl.ioctl(_OUTPUT, termios.TIOCSCTTY, 0)
        os.dup2(_OUTPUT, 0)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Python does this when it starts on a terminal; this process was started without one.
            sys.stdout.reconfigure(line_buffering=True)
    cold = spec["isolation"] == Isolation.SPAWN and not command
    spec_file = _write_spec(spec) if cold else 0
    apply_resource_limits(spec["resources"])
    if command or cold:
        for number in _IGNORED_BY_PYTHON:
            signal.signal(number, signal.SIG_DFL)
    if cold:
        program = [sys.executable, "-m", "longshore.execution.runners", str(spec_file)]
        os.execve(sys.executable, program, spec["environment"])  # noqa: S606
    exit_process(execute_attempt(spec, channel))


def _apply_environment(target: Mapping[str, str]) -> None:
    """Set exactly the target variables; most are set already, and those are left untouched."""
    current = dict(os.environ)  # noqa: TID251
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

    def __init__(self, working_directory: str) -> None:
        os.environ["PWD"] = working_directory  # noqa: TID251
        os.environ[SLOT_VARIABLE] = "1"  # noqa: TID251
        self.base = dict(os.environ)  # noqa: TID251 - passed on to the task, not read as settings
        # The names and values as the C library has them: reading them as text would cost more
        # than a small task. A private name of the standard library.
        self._raw: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]  # noqa: TID251
        self._raw_base = dict(self._raw)

    def end_slot(self) -> None:
        """Remove the variable that only children of slots have."""
        del os.environ[SLOT_VARIABLE]  # noqa: TID251

    def apply(
        self, attempt_variables: Mapping[bytes, bytes], variables: Mapping[str, str] | None
    ) -> None:
        """Set exactly the base, ``variables`` and ``attempt_variables``.

        Only the first task of a child has ``attempt_variables``.
        """
        if variables or (not attempt_variables and self._raw != self._raw_base):
            _apply_environment({**self.base, **(variables or {})})
        for name, value in attempt_variables.items():
            os.putenv(name, value)
            self._raw[name] = value


def _write_spec(spec: Mapping[str, Any]) -> int:
    """Write the spec to memory that the interpreter has which replaces this one."""
    file = os.memfd_create("longshore-spec", 0)
    with open(file, "w", encoding="utf-8", closefd=False) as stream:
        json.dump(spec, stream)
    return file


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
