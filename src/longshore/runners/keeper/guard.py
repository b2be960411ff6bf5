"""The guard: one small process an attempt, above everything that the attempt starts.

Orphans below it become its children, whatever sessions and groups they have made for themselves,
so "nothing is left" is a fact that the kernel states: there is no child to wait for. It outlives
the leader until that is so, and only then says that the attempt is over, and is free for the next.
When the keeper goes, the socket from it ends, and the guard kills everything.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from longshore.core.keeper_words import FILES_PER_START, Cause, Told
from longshore.runners.keeper import leader, pool
from longshore.runners.keeper.kernel import (
    adopt_orphans,
    be_called,
    close_all_but,
    descendants,
)

_WORD_BYTES = 8192
_LOOK_AT_MEMORY_S = 0.25
# How long to wait for those who hang in the kernel before the attempt is said to be over.
PATIENCE_S = 5.0
TICK_S = 0.005
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


class Guard:
    """The keeper's end of a guard."""

    def __init__(self) -> None:
        # Packets: each word arrives whole, with its files.
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self, number: int, files: Sequence[int], *, memory: int | None = None) -> None:
        """Let it start a leader with its four pipes; or, with one socket, a member of the pool."""
        word = json.dumps({"number": number, "start": {"memory": memory}})
        socket.send_fds(self.near, [word.encode()], list(files))

    def signal(self, number: int, *, kill: bool) -> None:
        """End this attempt, if it is still the one."""
        with contextlib.suppress(OSError):
            self.near.send(json.dumps({"number": number, "kill": kill}).encode())

    def live(self, to_keeper: int, to_worker: int, *, held: Sequence[int]) -> NoReturn:
        """The guard's own life; never returns.

        Args:
            to_keeper: The pipe by which the keeper knows who is free.
            to_worker: The pipe by which the worker knows what becomes of its attempts.
            held: To be kept open as long as anything below lives, and not by the leaders.
        """
        adopt_orphans()
        be_called(b"longshore-guard")
        close_all_but({self.far.fileno(), to_keeper, to_worker, *held})
        post = _Post(self, to_keeper, to_worker, leader.prepare())
        spare: leader.Spare | None = None
        while True:
            if spare is None:
                # Now, while nobody waits for it.
                with contextlib.suppress(OSError):
                    spare = post.new_leader()
            word, files = self._listen()
            if "start" in word:
                _Attempt(word, files, post).see_through(spare)
                spare = None

    def _listen(self) -> tuple[dict[str, Any], list[int]]:
        """The keeper's next word; if it is gone, this is the end."""
        word, files, _, _ = socket.recv_fds(self.far, _WORD_BYTES, FILES_PER_START)
        if not word:
            os._exit(0)
        return json.loads(word), files

    def heard(self, number: int) -> bool | None:
        """A word about the attempt at work: whether to kill. None: it was about an earlier one."""
        word = self.far.recv(_WORD_BYTES)
        if not word:
            return True
        said = json.loads(word)
        return said["kill"] if said["number"] == number else None


@dataclass(frozen=True, slots=True)
class _Post:
    """What a guard has for all its attempts."""

    keeper: Guard
    to_keeper: int
    to_worker: int
    environment: Mapping[str, str]

    def new_leader(self) -> leader.Spare:
        """One that waits for its attempt, or for its place in the pool."""
        return leader.Spare(self._begin)

    def _begin(self, files: list[int]) -> NoReturn:
        if len(files) < FILES_PER_START:
            pool.serve(*files)
        leader.lead(files, self.environment)


class _Attempt:
    """One leader and all that comes of it."""

    def __init__(self, word: dict[str, Any], files: Sequence[int], post: _Post) -> None:
        self._number: int = word["number"]
        self._memory_bytes: int | None = word["start"]["memory"]
        self._files = files
        self._in_pool = len(files) < FILES_PER_START
        self._post = post
        self._leader = 0
        self._status: int | None = None
        self._peak_bytes = 0
        self._cause = Cause.NONE
        self._told = False

    def see_through(self, spare: leader.Spare | None) -> None:
        """Let the leader begin and stay until nothing of it is left."""
        self._begin(spare)
        for number in self._files:
            os.close(number)
        if self._leader:
            self._tell(Told(number=self._number, over=False, leader=self._leader))
            self._watch()
        self._clear()

    def _begin(self, spare: leader.Spare | None) -> None:
        # The one that waited may have been killed meanwhile.
        for waiting in (spare, None):
            with contextlib.suppress(OSError):
                chosen = waiting or self._post.new_leader()
                chosen.give(self._files)
                self._leader = chosen.process_id
                return
        self._status = os.EX_OSERR << 8

    def _watch(self) -> None:
        """Until the leader has ended or everything has to."""
        control = self._post.keeper.far.fileno()
        waiting = select.poll()
        waiting.register(control, select.POLLIN)
        pause = _LOOK_AT_MEMORY_S * 1000 if self._memory_bytes else None
        with contextlib.ExitStack() as opened:
            if sys.platform == "linux":
                end = os.pidfd_open(self._leader)
                opened.callback(os.close, end)
                waiting.register(end, select.POLLIN)
            else:
                pause = TICK_S * 1000
            while self._status is None:
                ready = {number for number, _ in waiting.poll(pause)}
                if control in ready and self._has_to_die():
                    return
                self._reap()
                if self._too_large():
                    self._cause = Cause.MEMORY
                    return

    def _has_to_die(self) -> bool:
        kill = self._post.keeper.heard(self._number)
        if kill is False:
            self._signal_group(signal.SIGTERM)
        return bool(kill)

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._leader, number)
        except ProcessLookupError:
            # It has not come to make its group; it is ours to wait for, so the number is its own.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, number)

    def _too_large(self) -> bool:
        if self._memory_bytes is None:
            return False
        used = sum(descendants(os.getpid()).values())
        self._peak_bytes = max(self._peak_bytes, used)
        return used > self._memory_bytes

    def _reap(self) -> bool:
        """Wait for all who have ended; whether anybody is left."""
        while True:
            try:
                process_id, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if process_id == 0:
                return True
            self._peak_bytes = max(self._peak_bytes, usage.ru_maxrss * _RSS_UNIT)
            if process_id == self._leader:
                self._status = status

    def _clear(self) -> None:
        """Kill until the kernel says that there is nobody; then, and not before, say so."""
        patient_until = time.monotonic() + PATIENCE_S
        while self._reap():
            if self._status is None:
                self._signal_group(signal.SIGKILL)
            for process_id in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process_id, signal.SIGKILL)
            if time.monotonic() > patient_until:
                self._say_over()
            time.sleep(TICK_S)  # noqa: TID251 - no loop here, and nobody who would wake us
        self._say_over()

    def _say_over(self) -> None:
        if not self._told:
            self._told = True
            self._tell(
                Told(
                    number=self._number,
                    over=True,
                    leader=self._leader,
                    status=signal.SIGKILL if self._status is None else self._status,
                    peak_bytes=self._peak_bytes,
                    cause=self._cause,
                )
            )

    def _tell(self, told: Told) -> None:
        # First the keeper: what the worker answers may be the next order, and here is who is free.
        if told.over or self._in_pool:
            tell(self._post.to_keeper, told)
        if not self._in_pool:
            tell(self._post.to_worker, told)


def tell(pipe: int, told: Told) -> None:
    """Write it; if nobody is there to read it, nobody asks any more."""
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, told.record())
