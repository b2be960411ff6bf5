"""A runner without processes: the caller that asks for the next attempt carries it out.

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

from longshore.core.definitions.definition import RunnerKind
from longshore.core.documents import resolve_references
from longshore.core.tasks.failures import failure_of
from longshore.errors import UsageError
from longshore.execution.attempt_settings import python_settings
from longshore.execution.host.report_decoder import decode_report
from longshore.execution.runners import context, python
from longshore.interfaces.python.functions import TaskFunction
from longshore.ports.clock import Clock
from longshore.ports.output import Stream
from longshore.ports.runner import AttemptEnding, AttemptSpec, ChildReport, OutputReport


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
        replacements: Mapping[str, Callable[..., Any]],
        failures: Mapping[str, Sequence[Exception]],
    ) -> None:
        self.attempts: SimpleQueue[InProcessAttempt | None] = (
            SimpleQueue()
        )  # None: nothing will follow
        self.errors: dict[str, BaseException] = {}  # the last of each task, by key
        self._folder = folder
        self._clock = clock
        self._tasks = tasks
        self._replacements = replacements
        self._failures = failures
        self._active = 0
        self._idle = asyncio.Event()

    async def open(self) -> None:
        """Nothing to get ready."""

    async def close(self) -> None:
        """Nothing is left."""

    async def start(self, spec: AttemptSpec, *, deadline_ns: int) -> InProcessAttempt:
        folder = self._folder / f"{spec.task_id}.{spec.attempt}"
        folder.mkdir(parents=True)
        self._active += 1
        self._idle.clear()
        attempt = InProcessAttempt(
            spec,
            folder,
            self._call,
            self.errors,
            now=self._clock.now,
            on_closed=self._on_attempt_closed,
        )
        self.attempts.put(attempt)
        return attempt

    def _on_attempt_closed(self) -> None:
        self._active -= 1
        if not self._active:
            self._idle.set()

    @property
    def busy(self) -> bool:
        """Whether anything is being carried out, or waits for it."""
        return bool(self._active)

    async def wait_until_idle(self) -> None:
        """Return when nothing is at work any more."""
        await self._idle.wait()

    def _call(self, spec: AttemptSpec, document: Mapping[str, Any]) -> Any:
        failures = self._failures.get(spec.key, ())
        if spec.attempt <= len(failures):
            raise failures[spec.attempt - 1]
        task = self._tasks.get(spec.definition.name)
        instead = self._replacements.get(spec.key)
        settings = {**spec.definition.options, **(spec.input or {})}
        kwargs = resolve_references(settings.get("kwargs", {}), spec.dependency_outputs)
        if task is not None:
            return task.run_with(kwargs, replacement=instead)
        if instead is not None:
            return instead(*settings.get("args", ()), **kwargs)
        if spec.definition.runner is not RunnerKind.PYTHON:
            message = (
                f"task {spec.key!r} is a command, and nothing is started here: give a function in"
                f" its place, `replacements={{{spec.key!r}: …}}`"
            )
            raise UsageError(message)
        with _restored_sys_path():
            settings = python_settings(document, document["input"])
            return python.run(settings, document["dependency_outputs"])


class InProcessAttempt:
    """See ``ports.runner.RunningAttempt``; the caller that takes it carries it out."""

    def __init__(
        self,
        spec: AttemptSpec,
        folder: Path,
        call: Callable[[AttemptSpec, Mapping[str, Any]], Any],
        errors: dict[str, BaseException],
        *,
        now: Callable[[], datetime],
        on_closed: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.process_id = os.getpid()
        self.folder: Path | None = folder
        self._call = call
        self._errors = errors
        self._now = now
        self._on_closed: Callable[[], None] | None = on_closed
        self._loop = asyncio.get_running_loop()
        self._reports: asyncio.Queue[ChildReport | None] = asyncio.Queue()
        self._ended: asyncio.Future[AttemptEnding] = self._loop.create_future()
        self._saved_steps: dict[str, threading.Event] = {}

    # In the thread that takes attempts from the line:

    def execute(self) -> None:
        """Call the function; what it raises is its failure, unless it is meant for the test."""
        # A copy, so that the context of the attempt is not left behind in the test's own.
        ending = contextvars.copy_context().run(self._run_function)
        self._loop.call_soon_threadsafe(self._end, ending)

    def _run_function(self) -> AttemptEnding:
        document = self._document()
        here = context.Context(document, self, stop_requested=lambda: False)
        context.set_current(here)
        with self._streams(), contextlib.chdir(document["folder"]):
            try:
                result = json.loads(json.dumps(self._call(self.spec, document), allow_nan=False))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the edge, as in a child
                self._errors[self.spec.key] = error
                if not isinstance(error, SystemExit):
                    traceback.print_exc()
                return AttemptEnding(failure=failure_of(error))
            finally:
                here.close()
        return AttemptEnding(result=result)

    def _document(self) -> dict[str, Any]:
        spec = self.spec
        return {
            "runner": spec.definition.runner.value,
            "options": spec.definition.options,
            "overridable": spec.definition.overridable,
            "folder": str(self.folder),
            "task_id": spec.task_id,
            "job_id": spec.job_id,
            "attempt": spec.attempt,
            "input": spec.input,
            "dependency_outputs": dict(spec.dependency_outputs),
            "checkpoints": dict(spec.checkpoints),
            "feedback": spec.feedback,
            "previous_output": spec.previous_output,
        }

    @contextlib.contextmanager
    def _streams(self) -> Iterator[None]:
        with (
            _OutputStream(lambda data: self._report(OutputReport(Stream.STDOUT, data))) as stdout,
            _OutputStream(lambda data: self._report(OutputReport(Stream.STDERR, data))) as stderr,
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
        ):
            yield

    def send(self, kind: str, **content: Any) -> None:
        """What the context says; see ``runners.context.ReportSink``."""
        document = json.loads(json.dumps({"type": kind, **content}, allow_nan=False))
        report = decode_report(document, now=self._now())
        if report is not None:
            self._report(report)

    def report_step(self, name: str, result: Any) -> None:
        """Report a finished step; return when its result is kept."""
        self._saved_steps[name] = threading.Event()
        self.send("step", name=name, result=result)
        self._saved_steps[name].wait()

    def _report(self, report: ChildReport) -> None:
        self._loop.call_soon_threadsafe(self._reports.put_nowait, report)

    # On the event loop:

    def _end(self, ending: AttemptEnding) -> None:
        if not self._ended.done():
            self._ended.set_result(ending)
            self._reports.put_nowait(None)

    async def reports(self) -> AsyncIterator[ChildReport]:
        while (report := await self._reports.get()) is not None:
            yield report

    async def confirm_step(self, name: str) -> None:
        self._saved_steps[name].set()

    async def answer_spend_request(self, number: int, *, refusal: str | None) -> None:
        """Not called: agents are not run in this process."""

    async def ending(self) -> AttemptEnding:
        return await self._ended

    async def stop(self, *, grace: timedelta) -> str:
        # A function of this process cannot be stopped, only given up.
        self._end(AttemptEnding())
        return signal.SIGKILL.name

    def trust_until(self, deadline_ns: int) -> None:
        """A function of this process cannot be killed."""

    def rss_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        if self._on_closed is not None:
            self._on_closed()
            self._on_closed = None
            shutil.rmtree(str(self.folder), ignore_errors=True)


class _OutputStream(io.TextIOWrapper):
    """A stream that hands on what is printed."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        super().__init__(
            _OutputBuffer(sink), encoding="utf-8", errors="replace", write_through=True
        )


class _OutputBuffer(io.BytesIO):
    def __init__(self, sink: Callable[[bytes], None]) -> None:
        super().__init__()
        self._sink = sink

    def write(self, data: Any, /) -> int:
        if written := bytes(data):
            self._sink(written)
        return len(written)


@contextlib.contextmanager
def _restored_sys_path() -> Iterator[None]:
    """What a task adds to the path is not left there."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
