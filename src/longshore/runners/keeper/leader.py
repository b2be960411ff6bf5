"""The leader: the process that carries out an attempt, from the fork to its end.

It leads a session of its own and dies with its guard. Before the order is read everything that
belongs to somebody else is closed, so nothing that the task runs can reach it.
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
import sys
import termios
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from longshore.core.child_limits import Isolation
from longshore.core.child_places import CHANNEL_NUMBER, REPLIES_NUMBER
from longshore.runners.channel import Channel
from longshore.runners.keeper.kernel import close_all_but, die_with
from longshore.runners.work import carry_out, reporting

_OUTPUT, _ERRORS = 1, 2
_FIRST_OTHER = REPLIES_NUMBER + 1
_LIMITS = {
    "cpu_s": resource.RLIMIT_CPU,
    "memory_bytes": resource.RLIMIT_DATA,
    "open_files": resource.RLIMIT_NOFILE,
    "file_bytes": resource.RLIMIT_FSIZE,
}
# Between the signal that says so and the one that nobody survives.
_CPU_GRACE_S = 5
# Python ignores them, and whoever is executed would inherit that.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def lead(guard: int, order_path: str, files: Sequence[int]) -> NoReturn:
    """Never returns: the process ends as the attempt does."""
    set_apart(guard)
    put_in_place(files)
    close_all_but(range(_FIRST_OTHER))
    channel = Channel(CHANNEL_NUMBER, REPLIES_NUMBER)
    code = reporting(channel, lambda: _obey(order_path, channel))
    end(code)


def _obey(order_path: str, channel: Channel) -> None:
    order = read(order_path)
    if order["pty"]:
        fcntl.ioctl(_OUTPUT, termios.TIOCSCTTY, 0)
        os.dup2(_OUTPUT, 0)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # As Python does when it finds a terminal; this one had been started without.
            sys.stdout.reconfigure(line_buffering=True)
    hold_to(order["limits"])
    if order["isolation"] == Isolation.SPAWN and order["runner"] != "command":
        _restore_signals()
        program = [sys.executable, "-m", "longshore.runners", order_path]
        os.execve(sys.executable, program, order["environment"])  # noqa: S606
    if order["runner"] == "command":
        _restore_signals()
    end(carry_out(order, channel))


def set_apart(guard: int) -> None:
    """A session of its own, no signal handler of anybody else, and an end with the guard's."""
    os.setsid()
    die_with(guard)
    atexit._clear()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def put_in_place(files: Sequence[int]) -> None:
    """The four pipes under the numbers where a child expects them, whatever stood there."""
    # First out of the way: a pipe may have the very number that another is to get.
    aside = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 2 * _FIRST_OTHER) for number in files]
    for number, place in zip(
        aside, (_OUTPUT, _ERRORS, CHANNEL_NUMBER, REPLIES_NUMBER), strict=True
    ):
        os.dup2(number, place)
        os.close(number)


def read(order_path: str) -> dict[str, Any]:
    """The order, with folder and environment made this process's own."""
    with open(order_path, encoding="utf-8") as file:
        order: dict[str, Any] = json.load(file)
    os.chdir(order["folder"])
    os.environ.clear()  # noqa: TID251 - not read: made what the task is to find
    os.environ.update(order["environment"])  # noqa: TID251
    return order


def hold_to(limits: Mapping[str, int | None]) -> None:
    """Ask the kernel to hold this process, and those it starts, to its limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, kind in _LIMITS.items():
        wanted = limits.get(name)
        if wanted is not None:
            _, most = resource.getrlimit(kind)
            hard = wanted + _CPU_GRACE_S if kind == resource.RLIMIT_CPU else wanted
            if most != resource.RLIM_INFINITY:
                wanted, hard = min(wanted, most), min(hard, most)
            resource.setrlimit(kind, (wanted, hard))


def _restore_signals() -> None:
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)


def end(code: int) -> NoReturn:
    """End as an interpreter does, but for what belongs to the process this one is a copy of."""
    # The library's own names for it; multiprocessing ends its forks by them too.
    for module, name in ((threading, "_shutdown"), (atexit, "_run_exitfuncs")):
        with contextlib.suppress(Exception):
            getattr(module, name)()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)
