"""The leader: the process that carries out an attempt, from the fork to its end.

It leads a session of its own and dies with its guard. It is forked before there is an attempt for
it, and waits. Before the order is read everything that belongs to somebody else is closed, so
nothing that the task runs can reach it.
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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from longshore.core.child_limits import Isolation
from longshore.core.child_places import CHANNEL_NUMBER, REPLIES_NUMBER
from longshore.core.keeper_words import FILES_PER_START
from longshore.runners.channel import Channel
from longshore.runners.keeper.kernel import be_called, close_all_but, die_with
from longshore.runners.keeper.rehearsal import rehearse
from longshore.runners.work import carry_out, reporting

_OUTPUT, _ERRORS = 1, 2
_PLACES = (_OUTPUT, _ERRORS, CHANNEL_NUMBER, REPLIES_NUMBER)
_FIRST_OTHER = REPLIES_NUMBER + 1
_PIECE_BYTES = 64 * 1024
_BEGIN = b"\n"
SPARE, _AT_WORK = b"longshore-spare", b"longshore-task"
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


class Spare:
    """A guard's end of a leader that waits for its attempt.

    A copy of a process costs most when it first touches its memory, so all that is alike for every
    attempt is done before there is one.

    Raises:
        OSError: no process is to be had.
    """

    def __init__(self, begin: Callable[[list[int]], NoReturn]) -> None:
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        guard = os.getpid()
        with far, contextlib.ExitStack() as unless_forked:
            unless_forked.enter_context(near)
            self.process_id = os.fork()
            if self.process_id == 0:
                _stand_by(guard, far, begin)
            unless_forked.pop_all()
        self._near = near

    def give(self, files: Sequence[int]) -> None:
        """Hand it its files, with which it begins.

        Raises:
            OSError: it has died while it waited.
        """
        with self._near:
            socket.send_fds(self._near, [_BEGIN], list(files))


def _stand_by(guard: int, far: socket.socket, begin: Callable[[list[int]], NoReturn]) -> NoReturn:
    os.setsid()
    die_with(guard)
    be_called(SPARE)
    # What arrives must not get a number that it is to be moved to.
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in (CHANNEL_NUMBER, REPLIES_NUMBER):
        os.dup2(nothing, place)
    close_all_but({CHANNEL_NUMBER, REPLIES_NUMBER, far.fileno()})
    rehearse(1)
    word, files, _, _ = socket.recv_fds(far, len(_BEGIN), FILES_PER_START)
    if not word:
        os._exit(0)  # the guard has ended
    begin(files)


def lead(files: Sequence[int], environment: Mapping[str, str]) -> NoReturn:
    """Never returns: the process ends as the attempt does.

    Args:
        environment: What ``prepare`` returned.
    """
    be_called(_AT_WORK)
    put_in_place(files)
    close_all_but(range(_FIRST_OTHER))
    channel = Channel(CHANNEL_NUMBER, REPLIES_NUMBER)
    code = reporting(channel, lambda: _obey(accept(environment), channel))
    end(code)


def _obey(order: dict[str, Any], channel: Channel) -> None:
    if order["pty"]:
        fcntl.ioctl(_OUTPUT, termios.TIOCSCTTY, 0)
        os.dup2(_OUTPUT, 0)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # As Python does when it finds a terminal; this one had been started without.
            sys.stdout.reconfigure(line_buffering=True)
    command = order["runner"] == "command"
    cold = order["isolation"] == Isolation.SPAWN and not command
    path = _written_down(order) if cold else ""
    hold_to(order["limits"])
    if command or cold:
        _restore_signals()
    if cold:
        program = [sys.executable, "-m", "longshore.runners", path]
        os.execve(sys.executable, program, order["environment"])  # noqa: S606
    end(carry_out(order, channel))


def prepare() -> dict[str, str]:
    """What a guard does once for all the leaders that it will fork.

    Drops what the modules that were loaded have set up for signals and for the end of the process,
    and lets no pipe that arrives get a number to which another will be moved.

    Returns:
        The environment that a leader will find.
    """
    atexit._clear()
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    while os.open(os.devnull, os.O_RDWR) < _FIRST_OTHER:
        pass
    return surroundings()


def put_in_place(files: Sequence[int]) -> None:
    """The four pipes under the numbers where a child expects them, whatever stood there."""
    for number, place in zip(files, _PLACES, strict=True):
        os.dup2(number, place)


def accept(environment: Mapping[str, str]) -> dict[str, Any]:
    """Wait for the order, the first line of the replies; make its folder and variables our own.

    Args:
        environment: What this process has now.
    """
    pieces = [os.read(REPLIES_NUMBER, _PIECE_BYTES)]
    # Nobody is answered before there is a question, so nothing follows the line yet.
    while pieces[-1] and not pieces[-1].endswith(b"\n"):
        pieces.append(os.read(REPLIES_NUMBER, _PIECE_BYTES))
    if not pieces[-1]:
        os._exit(os.EX_NOINPUT)  # whoever wanted this has given up, or is gone
    order: dict[str, Any] = json.loads(b"".join(pieces).decode())
    os.chdir(order["folder"])
    _surround_with(order["environment"], environment)
    return order


def surroundings() -> dict[str, str]:
    """The variables of this process, as they are now."""
    return dict(os.environ)  # noqa: TID251 - not to use them, but to make them the task's own


def _surround_with(wanted: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Have exactly the wanted variables; most are there, and to leave them alone costs nothing."""
    for name in found.keys() - wanted.keys():
        del os.environ[name]  # noqa: TID251
    for name, value in wanted.items():
        if found.get(name) != value:
            os.environ[name] = value  # noqa: TID251


def _written_down(order: Mapping[str, Any]) -> str:
    """The path of a file with the order, for the interpreter that takes our place."""
    path = os.path.join(order["folder"], "order.json")
    opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        json.dump(order, file)
    return path


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
