"""Child slots without processes: children are coroutines on a clock, so that every run is the same.

What a task does is a coroutine function, its *behaviour*. It returns the result as JSON, or raises
``TaskError`` or ``ChildCrash``, and can print, report and save steps meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from longshore.core.definitions.definition import Isolation
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.ports.child_slots import (
    ChildEndCause,
    ChildEnding,
    SlotListener,
    SlotOutcome,
    SlotTask,
    runs_in_slot,
)
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import ChildReport, OutputReport, StepReport

_MICROSECOND = timedelta(microseconds=1)
_NO_TIME = timedelta(0)


class TaskError(Exception):
    """The task fails."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class ChildCrash(Exception):
    """The child ends while it runs the task."""


class SimulatedTask:
    """A task that runs, as its behaviour sees it."""

    def __init__(self, slot: _Slot, task: SlotTask) -> None:
        self.spec = task
        self.ignores_sigterm = False
        self.child_retires = False  # the child ends after this task
        self.folder: Path | None = None
        self.started_at_ns = slot.now_ns()
        self._slot = slot
        self._confirmed: set[str] = set()
        self._changed = asyncio.Event()

    async def sleep(self, duration: timedelta) -> None:
        """Let time pass."""
        await self._slot.clock.sleep(duration)

    async def print(self, data: bytes, stream: Stream = Stream.STDOUT) -> None:
        """Write output, as soon as the worker reads it."""
        await self._slot.output_is_read.wait()
        self._slot.post_output(self.spec.number, stream, data)

    def report(self, report: ChildReport) -> None:
        """Send a report."""
        self._slot.post_report(self.spec.number, report)

    async def save_step(self, name: str, result: Any) -> None:
        """Report a step and wait until it is stored."""
        self.report(StepReport(name, result))
        while name not in self._confirmed:
            self._changed.clear()
            await self._changed.wait()

    def confirm(self, name: str) -> None:
        """The step is stored."""
        self._confirmed.add(name)
        self._changed.set()


Behaviour = Callable[[SimulatedTask], Coroutine[Any, Any, str]]


async def _do_nothing() -> None:
    """A hook that is not used."""


class SimulatedSlots:
    """See ``ports.child_slots.ChildSlots``.

    Args:
        clock: Of the children.
        before_open: Called before a slot is opened; may raise what ``open_slot`` raises.
        before_event: Called before each event: while it waits, the worker learns nothing.
    """

    def __init__(
        self,
        listener: SlotListener,
        clock: Clock,
        behaviour: Behaviour,
        *,
        before_open: Callable[[], Awaitable[None]] = _do_nothing,
        before_event: Callable[[], Awaitable[None]] = _do_nothing,
    ) -> None:
        self.listener = listener
        self.clock = clock
        self.behaviour = behaviour
        self.begun: set[tuple[int, int]] = set()  # numbers and fences
        self.released_folders: list[Path] = []
        self.process_ids = count(1)
        self._before_open = before_open
        self._before_event = before_event
        self._slots: dict[int, _Slot] = {}
        self._events: deque[Callable[[], None]] = deque()
        self._delivery: asyncio.Task[None] | None = None
        self._abandoned = False

    # The port -----------------------------------------------------------------------------------

    async def open_slot(self, isolation: Isolation) -> int:
        await self._before_open()
        number = next(item for item in count() if item not in self._slots)
        self._slots[number] = _Slot(self, number, isolation)
        return number

    def give(self, slot: int, task: SlotTask) -> bool:
        return not self._abandoned and self._slots[slot].give(task)

    def take_back(self, slot: int) -> list[int]:
        return [] if self._abandoned else self._slots[slot].take_back()

    def kill(self, slot: int, *, grace: timedelta) -> list[int]:
        return [] if self._abandoned else self._slots[slot].kill(grace)

    def replace(self, slot: int) -> None:
        if not self._abandoned:
            self._slots[slot].replace()

    def trust_until(self, slot: int, deadline_ns: int) -> None:
        if not self._abandoned:
            self._slots[slot].trust_until(deadline_ns)

    def confirm_step(self, slot: int, number: int, name: str) -> None:
        current = self._slots[slot].current
        if current is not None and current.spec.number == number and not self._abandoned:
            current.confirm(name)

    def pause_output(self, slot: int) -> None:
        self._slots[slot].output_is_read.clear()

    def resume_output(self, slot: int) -> None:
        self._slots[slot].output_is_read.set()

    def process_id(self, slot: int) -> int:
        return self._slots[slot].process_id

    def release_folder(self, folder: Path) -> None:
        self.released_folders.append(folder)

    async def close(self) -> None:
        if self._abandoned:
            return
        for slot in list(self._slots.values()):
            slot.close()
        while self._events:
            self._events.popleft()()

    # For tests ----------------------------------------------------------------------------------

    @property
    def open_slots(self) -> list[int]:
        """The numbers of all slots."""
        return list(self._slots)

    def crash(self, slot: int) -> None:
        """The child of a slot crashes."""
        self._slots[slot].end_child(ChildEndCause.CRASHED, signal="SIGSEGV")

    def lose(self, slot: int) -> None:
        """The reaper of a slot is killed, and the child with it."""
        self._slots[slot].end_child(ChildEndCause.LOST, signal="SIGKILL")

    def abandon(self) -> None:
        """The worker's process ends: it learns and does nothing any more. Its children live on."""
        self._abandoned = True
        self._events.clear()

    def kill_all(self) -> None:
        """Kill the children of a worker that has ended."""
        for slot in self._slots.values():
            slot.kill_child()

    # For slots ----------------------------------------------------------------------------------

    def post(self, event: Callable[[], None]) -> None:
        """Let the worker learn of an event, soon."""
        if self._abandoned:
            return
        self._events.append(event)
        if self._delivery is None:
            self._delivery = asyncio.ensure_future(self._deliver())

    async def _deliver(self) -> None:
        try:
            while self._events:
                await self._before_event()
                if self._events:
                    self._events.popleft()()
        finally:
            self._delivery = None

    def forget(self, slot: int) -> None:
        """A slot is closed."""
        del self._slots[slot]


class _Slot:
    """One slot."""

    def __init__(self, slots: SimulatedSlots, number: int, isolation: Isolation) -> None:
        self.clock = slots.clock
        self.process_id = 0
        self.current: SimulatedTask | None = None
        self._slots = slots
        self._listener = slots.listener
        self._number = number
        self._isolation = isolation
        self._in_pool = isolation is Isolation.POOL
        self._deadline_ns = 0
        self.output_is_read = asyncio.Event()
        self.output_is_read.set()
        self._start_child()

    def now_ns(self) -> int:
        return self.clock.elapsed() // _MICROSECOND * 1000

    def _start_child(self) -> None:
        self._queue: deque[SlotTask] = deque()  # given and not taken by the child
        self._unfinished: dict[int, SlotTask] = {}  # given and without an event
        self._tenant: str | None = None
        self._ending: ChildEndCause | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._deadline_watch: asyncio.Task[None] | None = None
        self._filled = asyncio.Event()
        self.current = None
        self.process_id = next(self._slots.process_ids)
        self._child = asyncio.ensure_future(self._run_child(self.process_id))

    # What the worker does -----------------------------------------------------------------------

    def give(self, task: SlotTask) -> bool:
        if self._ending is not None or (self._unfinished and not self._in_pool):
            return False
        if task.number in self._unfinished:
            message = f"slot {self._number} already has task {task.number}"
            raise ValueError(message)
        if not runs_in_slot(task.definition) or task.definition.isolation is not self._isolation:
            message = f"tasks of {task.definition.name!r} cannot run in slot {self._number}"
            raise ValueError(message)
        if self._in_pool and self._tenant not in (None, task.tenant):
            message = f"the child of slot {self._number} has served another tenant: replace it"
            raise ValueError(message)
        self._tenant = task.tenant
        self._unfinished[task.number] = task
        self._queue.append(replace(task))
        self._filled.set()
        return True

    def take_back(self) -> list[int]:
        numbers = [task.number for task in self._queue]
        self._queue.clear()
        for number in numbers:
            del self._unfinished[number]
        return numbers

    def kill(self, grace: timedelta) -> list[int]:
        numbers = self.take_back()
        self._ending = ChildEndCause.KILLED
        current = self.current
        if current is None or grace <= _NO_TIME:
            self.end_child(ChildEndCause.KILLED, signal="SIGKILL")
        elif not current.ignores_sigterm:
            self.end_child(ChildEndCause.KILLED, signal="SIGTERM")
        else:
            self._timers.append(asyncio.ensure_future(self._kill_after(grace)))
        return numbers

    async def _kill_after(self, grace: timedelta) -> None:
        await self.clock.sleep(grace)
        self.end_child(ChildEndCause.KILLED, signal="SIGKILL")

    def replace(self) -> None:
        if self._ending is None:
            self._ending = ChildEndCause.REPLACED
            self._filled.set()

    def trust_until(self, deadline_ns: int) -> None:
        self._deadline_ns = deadline_ns
        self._watch_deadline()

    def close(self) -> None:
        self.end_child(ChildEndCause.KILLED, signal="SIGKILL", closes=True)

    # What the child does ------------------------------------------------------------------------

    async def _run_child(self, process_id: int) -> None:
        while self.process_id == process_id:
            # Until the end of this moment the worker can take a task back.
            await self.clock.sleep(_NO_TIME)
            if self._queue:
                await self._take_task(self._queue.popleft())
            elif self._ending is ChildEndCause.REPLACED:
                self.end_child(ChildEndCause.REPLACED)
            else:
                self._filled.clear()
                await self._filled.wait()

    async def _take_task(self, task: SlotTask) -> None:
        if self.now_ns() >= self._deadline_ns:
            self._slots.post(lambda: self._deliver_too_late(task.number))
            return
        self._slots.begun.add((task.number, task.fence))
        self.current = current = SimulatedTask(self, task)
        self._watch_deadline()
        result: str | None = None
        failure: Failure | None = None
        try:
            result = await self._slots.behaviour(current)
        except TaskError as error:
            failure = error.failure
        except ChildCrash:
            self.end_child(ChildEndCause.CRASHED, signal="SIGSEGV")
            return
        self.current = None
        outcome = SlotOutcome(
            task.number,
            result,
            failure,
            self.now_ns() - current.started_at_ns,
            current.folder,
        )
        self._slots.post(lambda: self._deliver_outcome(outcome))
        if not self._in_pool:
            self._stop_child()
        elif current.child_retires:
            self.end_child(ChildEndCause.RETIRED)
        elif self._ending is ChildEndCause.KILLED:
            self.end_child(ChildEndCause.KILLED, signal="SIGTERM")

    def _watch_deadline(self) -> None:
        if self._deadline_watch is not None:
            self._deadline_watch.cancel()
            self._deadline_watch = None
        if self.current is not None:
            self._deadline_watch = asyncio.ensure_future(self._wait_for_deadline())

    async def _wait_for_deadline(self) -> None:
        while (left_ns := self._deadline_ns - self.now_ns()) > 0:
            await self.clock.sleep(left_ns // 1000 * _MICROSECOND)
        if self.current is not None:
            self.end_child(ChildEndCause.DEADLINE, signal="SIGKILL")

    # How the child ends -------------------------------------------------------------------------

    def _stop_child(self) -> None:
        self.process_id = 0
        for task in (self._child, self._deadline_watch, *self._timers):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    def kill_child(self) -> None:
        """Kill the child of a worker that has ended."""
        self.current = None
        self._stop_child()

    def end_child(
        self, cause: ChildEndCause, *, signal: str | None = None, closes: bool = False
    ) -> None:
        """End the child, unless it has ended; the worker learns of it."""
        if not self.process_id:
            return
        begun, self.current = self.current, None
        self._stop_child()
        if self._ending is not None and cause is not ChildEndCause.LOST:
            cause = self._ending
        closes = closes or cause is ChildEndCause.LOST
        self._slots.post(lambda: self._deliver_end(cause, begun, signal, closes=closes))

    # What the worker learns ---------------------------------------------------------------------

    def post_output(self, number: int, stream: Stream, data: bytes) -> None:
        self.post_report(number, OutputReport(stream, data))

    def post_report(self, number: int, report: ChildReport) -> None:
        self._slots.post(lambda: self._listener.report(self._number, number, report))

    def _deliver_too_late(self, number: int) -> None:
        del self._unfinished[number]
        self._listener.too_late(self._number, number)

    def _deliver_outcome(self, outcome: SlotOutcome) -> None:
        del self._unfinished[outcome.number]
        if not self._in_pool:
            self._start_child()
        self._listener.outcome(self._number, outcome)

    def _deliver_end(
        self,
        cause: ChildEndCause,
        begun: SimulatedTask | None,
        signal: str | None,
        *,
        closes: bool,
    ) -> None:
        number = None if begun is None else begun.spec.number
        not_begun = tuple(item for item in self._unfinished if item != number)
        failure = Failure(category=ErrorCategory.CRASH, message=f"the child ended: {cause}")
        if closes:
            self._slots.forget(self._number)
        else:
            self._start_child()
        self._listener.child_ended(
            self._number,
            ChildEnding(
                cause=cause,
                begun=number,
                not_begun=not_begun,
                failure=None if begun is None else failure,
                folder=None if begun is None else begun.folder,
                signal=signal,
                slot_closed=closes,
            ),
        )
