"""The supervisor: keeps worker processes running. What to do is decided in ``core.supervision``.

It opens no store and takes no work, so it has little that can fail; if it fails all the same, its
workers notice and drain by themselves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from longshore.core.supervision import (
    Decision,
    Drain,
    GivenUp,
    Hurry,
    Kill,
    Start,
    Supervision,
    SupervisionPolicy,
)
from longshore.ports.clock import Clock

logger = logging.getLogger(__name__)

LOOK_EVERY = timedelta(seconds=1)
NOT_STARTED = 126
"""The code of a worker that could not be started at all, as a shell has it."""


class Word(StrEnum):
    """What a worker tells its supervisor."""

    SERVING = "serving"
    DRAINING = "draining"


class WorkerProcess(Protocol):
    """A worker in a process of its own."""

    @property
    def process_id(self) -> int:
        """By which the operating system knows it."""
        ...

    def ask_to_end(self) -> None:
        """The first time: drain. The second time: give back what runs. No harm if it has ended."""
        ...

    def kill(self) -> None:
        """End it without a word. No harm if it has ended."""
        ...

    def memory_bytes(self) -> int:
        """Resident memory of the process itself; 0 if that cannot be seen."""
        ...

    async def ended(self) -> int:
        """Wait for its end; its exit code, or minus the signal that ended it."""
        ...


StartWorker = Callable[[int, Callable[[Word], None]], WorkerProcess]
"""Starts a worker for a place, by its number, and hands on what that worker says.

An ``OSError`` says that it could not be started.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    place: int
    process: WorkerProcess

    def tell(self, event: str, level: int = logging.INFO, **fields: object) -> None:
        """A record about it."""
        known = {"worker": self.place, "pid": self.process.process_id}
        logger.log(level, event, extra={**known, **fields})


class Supervisor:
    """Runs until all workers have ended."""

    def __init__(self, policy: SupervisionPolicy, start: StartWorker, clock: Clock) -> None:
        self._start = start
        self._clock = clock
        self._supervision = Supervision(policy, now=clock.elapsed(), local=clock.now().astimezone())
        self._running: dict[int, _Running] = {}  # by their serials
        self._waiting: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def given_up(self) -> GivenUp | None:
        """Why it gave up; None: it has not."""
        return self._supervision.given_up

    @property
    def running(self) -> int:
        """How many worker processes there are now."""
        return len(self._running)

    def stop(self) -> None:
        """Drain all; asked again, end them at once; a third time, kill them."""
        self._supervision.stop()
        self._changed.set()

    def recycle(self) -> None:
        """Replace all workers by fresh ones, one after the other."""
        self._supervision.recycle()
        self._changed.set()

    async def run(self) -> None:
        """Keep workers running until ``stop``, or until there is no point in going on."""
        try:
            while not self._supervision.finished:
                self._changed.clear()
                self._look()
                await self._until_next_look()
        finally:
            # Should this break, nobody is killed: the workers notice and drain by themselves.
            for waiting in self._waiting:
                waiting.cancel()
            await asyncio.gather(*self._waiting, return_exceptions=True)

    def _look(self) -> None:
        for serial, running in self._running.items():
            self._supervision.measured(serial, running.process.memory_bytes())
        now, local = self._clock.elapsed(), self._clock.now().astimezone()
        for decision in self._supervision.decide(now=now, local=local):
            self._carry_out(decision)

    def _carry_out(self, decision: Decision) -> None:
        match decision:
            case Start(place=place, serial=serial):
                self._begin(place, serial)
            case Drain(serial=serial, reason=reason):
                self._running[serial].tell("worker.draining", reason=reason.value)
                self._running[serial].process.ask_to_end()
            case Hurry(serial=serial):
                self._running[serial].tell("worker.hurried")
                self._running[serial].process.ask_to_end()
            case Kill(serial=serial):
                self._running[serial].tell("worker.killed", logging.WARNING)
                self._running[serial].process.kill()

    def _begin(self, place: int, serial: int) -> None:
        try:
            process = self._start(place, lambda word: self._heard(serial, word))
        except OSError as error:
            logger.warning("worker.not_started", extra={"worker": place, "error": str(error)})
            self._supervision.ended(serial, NOT_STARTED, now=self._clock.elapsed())
            self._changed.set()
            return
        running = self._running[serial] = _Running(place=place, process=process)
        running.tell("worker.started")
        waiting = asyncio.ensure_future(self._see_to_the_end(serial, running))
        self._waiting.add(waiting)
        waiting.add_done_callback(self._waiting.discard)

    async def _see_to_the_end(self, serial: int, running: _Running) -> None:
        code = await running.process.ended()
        running.tell("worker.ended", code=code)
        del self._running[serial]
        self._supervision.ended(serial, code, now=self._clock.elapsed())
        self._changed.set()

    def _heard(self, serial: int, word: Word) -> None:
        if serial not in self._running:
            return  # its last words came after its end
        match word:
            case Word.SERVING:
                self._supervision.serving(serial)
            case Word.DRAINING:
                self._supervision.draining(serial, now=self._clock.elapsed())
        self._changed.set()

    async def _until_next_look(self) -> None:
        due_in = self._supervision.due_in(self._clock.elapsed())
        longest = LOOK_EVERY if due_in is None else min(due_in, LOOK_EVERY)
        waits = [
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self._clock.sleep(longest)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
