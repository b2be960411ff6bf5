"""The keeper: the process that every child of a worker is copied from.

Small, without threads, event loop or database, with everything loaded that children need, so that
a child costs a fork. It holds a socket to its worker; when that ends, the keeper ends, and with it
the pipes to the guards, who then kill what is below them. Whoever is orphaned by the death of a
guard comes to the keeper and is killed here.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import selectors
import signal
import socket
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from longshore.core.child_limits import Isolation
from longshore.core.keeper_words import (
    FILES_PER_START,
    TOLD_AT_ONCE_BYTES,
    Cause,
    Lines,
    Told,
    Word,
    line_of,
    told_in,
)
from longshore.runners.keeper import pool
from longshore.runners.keeper.guard import PATIENCE_S, TICK_S, Guard, tell
from longshore.runners.keeper.kernel import adopt_orphans, descendants
from longshore.runners.keeper.rehearsal import OFTEN, rehearse

_RECEIVED_AT_ONCE = 64 * 1024
_FILES_AT_ONCE = 64


@dataclass(slots=True)
class _Guarded:
    """A guard that lives, and what it has to do."""

    guard: Guard
    name: int | None = None  # what it was told to start; None: it is free
    number: int | None = None  # the attempt, or the last one; None: its member of the pool is free
    leader: int = 0
    idle_since: int = 0  # in ends of attempts
    member: pool.Member | None = None

    @property
    def in_pool(self) -> bool:
        return self.name is not None and self.name < 0

    def set_free(self, now: int) -> None:
        self.name = self.member = None
        self.leader = 0
        self.idle_since = now


class Keeper:
    """One worker's."""

    def __init__(self, worker: socket.socket, to_worker: int, held: tuple[int, ...]) -> None:
        self._worker = worker
        self._to_worker = to_worker  # where guards tell it what becomes of their attempts
        self._held = held  # as long as anything of an attempt lives
        self._lines = Lines()
        self._files: deque[int] = deque()
        self._from_guards, self._to_keeper = os.pipe()
        os.set_blocking(self._from_guards, False)
        self._guards: dict[int, _Guarded] = {}  # by process id
        self._ends = itertools.count(1)
        self._names_in_pool = itertools.count(-1, -1)
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until the worker goes."""
        adopt_orphans()
        woken = self._woken_by_children()
        for file, act in (
            (self._worker, self._hear),
            (self._from_guards, self._hear_guards),
            (woken, lambda: self._bury(woken)),
        ):
            self._selector.register(file, selectors.EVENT_READ, act)
        rehearse(OFTEN)
        # Nothing that was loaded is ever freed: a collection would only make children copy pages.
        gc.collect()
        gc.freeze()
        self._say(Word.READY, 0)
        going = True
        while going:
            for key, _ in self._selector.select():
                going = key.data() is not False and going

    def _woken_by_children(self) -> int:
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return reading

    def _hear(self) -> bool:
        """What the worker says; False at its end."""
        try:
            data, files, _, _ = socket.recv_fds(self._worker, _RECEIVED_AT_ONCE, _FILES_AT_ONCE)
        except ConnectionError:
            return False
        self._files.extend(files)
        for said in self._lines.add(data):
            if said["word"] == Word.START:
                self._start(said, [self._files.popleft() for _ in range(FILES_PER_START)])
            elif said["word"] == Word.SIGNAL:
                for guarded in self._guards.values():
                    if guarded.number == said["number"] and guarded.name is not None:
                        guarded.guard.signal(guarded.name, kill=said["kill"])
        return bool(data)

    def _say(self, word: Word, number: int, **content: Any) -> None:
        # If the worker is gone, the next thing heard of it is its end.
        with contextlib.suppress(ConnectionError):
            self._worker.sendall(line_of(word, number, **content))

    def _start(self, said: dict[str, Any], files: list[int]) -> None:
        number = said["number"]
        try:
            if said["isolation"] == Isolation.POOL:
                self._start_in_pool(number, files)
            else:
                guarded = self._free_guard()
                guarded.name = guarded.number = number
                guarded.guard.start(number, files, memory=said["memory"])
                self._have_one_more()
        except OSError as error:
            self._say(Word.REFUSED, number, error=str(error))
        finally:
            for file in files:
                os.close(file)

    def _free_guard(self) -> _Guarded:
        # The worker may have heard of an end that is still waiting here to be read.
        self._hear_guards()
        free = [guarded for guarded in self._guards.values() if guarded.name is None]
        # Whoever has rested longest has had the time to get its next leader ready.
        return min(free, key=lambda guarded: guarded.idle_since) if free else self._new_guard()

    def _have_one_more(self) -> None:
        """A guard that is free, for whoever comes next; without it they only wait a little."""
        if all(guarded.name is not None for guarded in self._guards.values()):
            with contextlib.suppress(OSError):
                self._new_guard()

    def _new_guard(self) -> _Guarded:
        guard = Guard()
        with guard.far:
            process_id = os.fork()
            if process_id == 0:
                _become(lambda: guard.live(self._to_keeper, self._to_worker, held=self._held))
        guarded = self._guards[process_id] = _Guarded(guard)
        return guarded

    def _start_in_pool(self, number: int, files: list[int]) -> None:
        free = (one for one in self._guards.values() if one.member and one.number is None)
        guarded = next(free, None) or self._new_member()
        guarded.number = number
        if guarded.member is not None:
            guarded.member.give(files)
        if guarded.leader:
            self._tell(Told(number=number, over=False, leader=guarded.leader))

    def _new_member(self) -> _Guarded:
        guarded, member = self._free_guard(), pool.Member()
        guarded.name, guarded.member = next(self._names_in_pool), member
        with member.far:
            guarded.guard.start(guarded.name, [member.far.fileno()])
        self._selector.register(
            member.near, selectors.EVENT_READ, lambda: self._take_member(guarded, member)
        )
        return guarded

    def _take_member(self, guarded: _Guarded, member: pool.Member) -> None:
        """A member of the pool has done its task, or is gone."""
        if guarded.member is not member:
            return  # it was looked after when its guard told of its end
        code, stays = member.take()
        if code is not None and not guarded.leader and guarded.number is not None:
            # It was quicker than its guard's word that it has begun.
            guarded.leader = member.process_id
            self._tell(Told(number=guarded.number, over=False, leader=guarded.leader))
        if not stays:
            self._selector.unregister(member.near)
            member.near.close()
            guarded.member = None
        if code is not None and guarded.number is not None:
            self._tell(Told(number=guarded.number, over=True, status=code << 8))
            guarded.number = None

    def _tell(self, told: Told) -> None:
        tell(self._to_worker, told)

    def _hear_guards(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for told in told_in(os.read(self._from_guards, TOLD_AT_ONCE_BYTES)):
                for guarded in self._guards.values():
                    if guarded.name == told.number:
                        self._heard_of(guarded, told)

    def _heard_of(self, guarded: _Guarded, told: Told) -> None:
        while told.over and guarded.member is not None:
            # What a member said last comes before its end.
            self._take_member(guarded, guarded.member)
        known, in_pool, guarded.leader = guarded.leader, guarded.in_pool, told.leader
        if told.over:
            # Free before it is told: the answer may be the next order.
            guarded.set_free(next(self._ends))
        if in_pool and guarded.number is not None and (told.over or not known):
            # Its guard does not know by which numbers the tasks of a member go.
            self._tell(replace(told, number=guarded.number))

    def _bury(self, woken: int) -> None:
        """Wait for guards that have ended; those whom one left behind have come to us."""
        with contextlib.suppress(BlockingIOError):
            os.read(woken, 4096)
        while True:
            try:
                process_id, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process_id == 0:
                return
            if process_id in self._guards:
                self._hear_guards()
                self._lose(self._guards.pop(process_id))

    def _lose(self, guarded: _Guarded) -> None:
        """A guard was killed."""
        self._kill_orphans()
        guarded.guard.near.close()
        if guarded.number is not None:
            # Also if it was over: the guard may not have come to say so. Nobody hears it twice.
            lost = Told(number=guarded.number, over=True, status=signal.SIGKILL, cause=Cause.LOST)
            self._tell(lost)

    def _kill_orphans(self) -> None:
        """Whoever is below us and below none of our guards, until nobody is."""
        patient_until = time.monotonic() + PATIENCE_S
        while time.monotonic() < patient_until and (orphans := self._orphans()):
            for process_id in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            time.sleep(TICK_S)  # noqa: TID251 - no loop here, and nobody who would wake us

    def _orphans(self) -> set[int]:
        below_guards = {
            process_id for one in self._guards for process_id in (one, *descendants(one))
        }
        return descendants(os.getpid()).keys() - below_guards


def _become(live: Callable[[], NoReturn]) -> NoReturn:
    """Live another life in this copy of the keeper, and never come back to the keeper's own."""
    try:
        # The keeper's wake-ups are not ours.
        signal.set_wakeup_fd(-1)
        live()
    except BaseException:  # noqa: BLE001 - nobody is above us to be told, but for the log
        traceback.print_exc()
    finally:
        os._exit(os.EX_SOFTWARE)
