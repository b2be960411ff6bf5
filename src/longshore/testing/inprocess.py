"""A runner without processes: attempts are carried out by whoever asks for the next one.

The services run on an event loop in one thread and put attempts in a line; the test's own thread
takes them from there one by one and calls the functions, so that they can be stepped through,
patched and measured like any other code. Each has a folder of its own and a context whose steps are
kept, as in a child.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import io
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from longshore.adapters.process.said import report_in
from longshore.core.definition import RunnerKind
from longshore.core.failures import failure_of
from longshore.core.references import with_results
from longshore.errors import UsageError
from longshore.interfaces.python.functions import TaskFunction
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import Ending, Printed, Report, WorkOrder
from longshore.runners import context, python


class InProcessRunner:
    """See ``ports.runner.Runner``.

    Args:
        folder: Where each attempt gets a folder.
        tasks: Task functions by the names of their definitions; others are imported.
        instead: Functions to call in place of the real ones, by task key.
        fails: What the first attempts raise before anything is called, by task key.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        *,
        tasks: Mapping[str, TaskFunction[..., Any, Any]],
        instead: Mapping[str, Callable[..., Any]],
        fails: Mapping[str, Sequence[Exception]],
    ) -> None:
        self.line: SimpleQueue[InProcessAttempt | None] = SimpleQueue()  # None: nothing will follow
        self.errors: dict[str, BaseException] = {}  # the last of each task, by key
        self._folder = folder
        self._clock = clock
        self._tasks = tasks
        self._instead = instead
        self._fails = fails
        self._at_work = 0
        self._idle = asyncio.Event()

    async def open(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing is left."""

    async def start(self, order: WorkOrder) -> InProcessAttempt:
        folder = self._folder / f"{order.task_id}.{order.attempt}"
        folder.mkdir(parents=True)
        self._at_work += 1
        self._idle.clear()
        attempt = InProcessAttempt(
            order, folder, self._call, self.errors, now=self._clock.now, closed=self._closed
        )
        self.line.put(attempt)
        return attempt

    def _closed(self) -> None:
        self._at_work -= 1
        if not self._at_work:
            self._idle.set()

    @property
    def at_work(self) -> bool:
        """Whether anything is being carried out, or waits for it."""
        return bool(self._at_work)

    async def idle(self) -> None:
        """Return when nothing is at work any more."""
        await self._idle.wait()

    def _call(self, order: WorkOrder, document: Mapping[str, Any]) -> Any:
        failures = self._fails.get(order.key, ())
        if order.attempt <= len(failures):
            raise failures[order.attempt - 1]
        task = self._tasks.get(order.definition.name)
        instead = self._instead.get(order.key)
        settings = {**order.definition.options, **(order.input or {})}
        kwargs = with_results(settings.get("kwargs", {}), order.dependency_outputs)
        if task is not None:
            return task.run_with(kwargs, instead=instead)
        if instead is not None:
            return instead(*settings.get("args", ()), **kwargs)
        if order.definition.runner is not RunnerKind.PYTHON:
            message = (
                f"task {order.key!r} is a command, and nothing is started here: give a function in"
                f" its place, `instead={{{order.key!r}: …}}`"
            )
            raise UsageError(message)
        with _same_path():
            return python.run(document)


class InProcessAttempt:
    """See ``ports.runner.RunningAttempt``; whoever takes it from the line carries it out."""

    def __init__(
        self,
        order: WorkOrder,
        folder: Path,
        call: Callable[[WorkOrder, Mapping[str, Any]], Any],
        errors: dict[str, BaseException],
        *,
        now: Callable[[], datetime],
        closed: Callable[[], None],
    ) -> None:
        self.order = order
        self.process_id = os.getpid()
        self.folder: Path | None = folder
        self._call = call
        self._errors = errors
        self._now = now
        self._tell_closed: Callable[[], None] | None = closed
        self._loop = asyncio.get_running_loop()
        self._reports: asyncio.Queue[Report | None] = asyncio.Queue()
        self._ended: asyncio.Future[Ending] = self._loop.create_future()
        self._kept: dict[str, threading.Event] = {}

    # In the thread that takes attempts from the line:

    def carry_out(self) -> None:
        """Call the function; what it raises is its failure, unless it is meant for the test."""
        # A copy, so that the context of the attempt is not left behind in the test's own.
        ending = contextvars.copy_context().run(self._carried_out)
        self._loop.call_soon_threadsafe(self._end, ending)

    def _carried_out(self) -> Ending:
        document = self._document()
        here = context.Context(document, self, wanted_to_end=lambda: False)
        context.enter(here)
        with self._streams(), contextlib.chdir(document["folder"]):
            try:
                result = json.loads(json.dumps(self._call(self.order, document), allow_nan=False))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the edge, as in a child
                self._errors[self.order.key] = error
                if not isinstance(error, SystemExit):
                    traceback.print_exc()
                return Ending(failure=failure_of(error), exit_code=1)
            finally:
                here.close()
        return Ending(result=result, exit_code=0)

    def _document(self) -> dict[str, Any]:
        order = self.order
        return {
            "runner": order.definition.runner.value,
            "options": order.definition.options,
            "folder": str(self.folder),
            "task_id": order.task_id,
            "job_id": order.job_id,
            "attempt": order.attempt,
            "input": order.input,
            "dependency_outputs": dict(order.dependency_outputs),
            "checkpoints": dict(order.checkpoints),
            "feedback": order.feedback,
            "previous_output": order.previous_output,
        }

    @contextlib.contextmanager
    def _streams(self) -> Iterator[None]:
        with (
            _Printing(lambda data: self._report(Printed(Stream.STDOUT, data))) as stdout,
            _Printing(lambda data: self._report(Printed(Stream.STDERR, data))) as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            yield

    def say(self, kind: str, **content: Any) -> None:
        """What the context says; see ``runners.context.Says``."""
        said = json.loads(json.dumps({"type": kind, **content}, allow_nan=False))
        report = report_in(said, now=self._now())
        if report is not None:
            self._report(report)

    def step(self, name: str, result: Any) -> None:
        """Report a finished step; return when its result is kept."""
        self._kept[name] = threading.Event()
        self.say("step", name=name, result=result)
        self._kept[name].wait()

    def _report(self, report: Report) -> None:
        self._loop.call_soon_threadsafe(self._reports.put_nowait, report)

    # On the event loop:

    def _end(self, ending: Ending) -> None:
        if not self._ended.done():
            self._ended.set_result(ending)
            self._reports.put_nowait(None)

    async def reports(self) -> AsyncIterator[Report]:
        while (report := await self._reports.get()) is not None:
            yield report

    async def step_kept(self, name: str) -> None:
        self._kept[name].set()

    async def answer(self, number: int, *, stop: str | None) -> None:
        """Nobody asks: agents are not run in this process."""

    async def ending(self) -> Ending:
        return await self._ended

    async def stop(self, *, grace: timedelta) -> str:
        # A function of this process cannot be stopped, only given up.
        self._end(Ending(signal=signal.SIGKILL.name))
        return signal.SIGKILL.name

    def rss_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        if self._tell_closed is not None:
            self._tell_closed()
            self._tell_closed = None
            shutil.rmtree(str(self.folder), ignore_errors=True)


class _Printing(io.TextIOWrapper):
    """A stream that hands on what is printed."""

    def __init__(self, hand_on: Callable[[bytes], None]) -> None:
        super().__init__(_Bytes(hand_on), encoding="utf-8", errors="replace", write_through=True)


class _Bytes(io.BytesIO):
    def __init__(self, hand_on: Callable[[bytes], None]) -> None:
        super().__init__()
        self._hand_on = hand_on

    def write(self, data: Any, /) -> int:
        if written := bytes(data):
            self._hand_on(written)
        return len(written)


@contextlib.contextmanager
def _same_path() -> Iterator[None]:
    """What a task adds to the path is not left there."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
