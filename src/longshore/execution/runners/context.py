"""The context of a running task: what it may ask of Longshore.

Checkpointed steps, progress, log lines, a summary, artifacts, and whether the attempt has to end.
Everything but artifacts goes through the channel; artifacts go into the attempt's folder, from
where the worker stores them when the attempt has ended, also after a failure.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextvars import ContextVar
from threading import Lock
from types import FrameType
from typing import Any, Protocol, TypeVar

from longshore.core.ids import traceparent_of
from longshore.core.text.sanitise import safe_excerpt
from longshore.errors import StepNameTaken
from longshore.execution.protocol import ChildMessage
from longshore.execution.runners.channel import Throttle

ResultT = TypeVar("ResultT")

LINE_LIMIT_CHARACTERS = 500
"""Longer summaries and progress texts are truncated."""
_LOG_CHARACTERS = 5_000  # in JSON less than a message may have


class ReportSink(Protocol):
    """Where a context sends its reports: a ``Channel``, or a substitute without a worker."""

    def send(self, kind: ChildMessage, **content: Any) -> None:
        """Send one message."""
        ...

    def report_step(self, name: str, result: Any) -> None:
        """Report a finished step; return when its result is stored."""
        ...


class Context:
    """The running attempt, as its task sees it.

    Args:
        stop_requested: Returns whether the attempt has to end; by default whether SIGTERM arrived.
        create_folder: Creates the attempt's folder when it is first used, and returns its path; by
            default the folder exists.
    """

    def __init__(
        self,
        spec: Mapping[str, Any],
        channel: ReportSink,
        *,
        stop_requested: Callable[[], bool] | None = None,
        create_folder: Callable[[], str] | None = None,
    ) -> None:
        self.task_id: str = spec["task_id"]
        self.job_id: str = spec["job_id"]
        self.attempt: int = spec["attempt"]
        self.dependency_outputs: Mapping[str, Any] = spec["dependency_outputs"]
        self.feedback: str | None = spec["feedback"]
        self.previous_output: Any = spec["previous_output"]
        self._create_folder = create_folder
        # Read now: the task may change its working directory.
        self._folder = None if create_folder else spec.get("folder") or os.getcwd()
        self._steps = dict(spec["checkpoints"])
        self._step_calls: dict[str, int] = {}
        self._running_steps: set[str] = set()
        self._steps_lock = Lock()
        self._channel = channel
        self._throttle: Throttle | None = None
        self._last_progress: tuple[float, float | None] | None = None
        self._sigterm: SigtermHandler | None = None
        self._stop_requested = stop_requested

    @property
    def folder(self) -> str:
        """The attempt's own folder; what is in its ``artifacts`` folder is stored at the end."""
        if self._folder is None:
            self._folder = self._create_folder() if self._create_folder else os.getcwd()
        return self._folder

    @property
    def idempotency_key(self) -> str:
        """The same key in every attempt of this task, for services that deduplicate requests."""
        return self.task_id

    @property
    def traceparent(self) -> str:
        """The W3C trace context of this attempt; the job has one trace, each attempt a span.

        A task of its own process finds it in ``TRACEPARENT`` too, unless ``env`` sets another.
        """
        return traceparent_of(self.job_id, self.task_id, self.attempt)

    @property
    def cancelled(self) -> bool:
        """Whether this attempt has to end: a user cancelled it, it timed out, or its worker stops.

        The worker sends SIGTERM, and kills what still runs after ``worker.kill_grace``. SIGTERM
        ends a task that never reads this property. The first read installs a handler: from then on
        SIGTERM only makes this True, and the task has to read it again, clean up and return before
        it is killed. The value that it then returns is discarded; steps that it finishes are
        stored. The first read must be in the main thread; later ones may be in any thread.
        """
        if self._stop_requested is None:
            self._sigterm = SigtermHandler()
            self._stop_requested = self._sigterm.received
        return self._stop_requested()

    def step(self, name: str, work: Callable[[], ResultT]) -> ResultT:
        """Do a part of the work once: a later attempt gets the stored result instead.

        The result is converted to JSON and back (a tuple becomes a list), in the attempt that did
        the work and in later ones. In an async function use ``astep``.

        Args:
            name: Identifies the step in later attempts. The second call with the same name is the
                step ``name#2``, the third ``name#3``, so the calls of a name must come in the same
                order in every attempt.

        Raises:
            StepNameTaken: a step with this name is running.
        """
        with self._numbered_step(str(name)) as step:
            if step not in self._steps:
                self._channel.send("activity", activity="step_running", step=step)
                result = _as_json(step, work())
                self._channel.report_step(step, result)
                self._steps[step] = result
            return self._steps[step]  # type: ignore[no-any-return]

    async def astep(self, name: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Like ``step``, for async work: ``await ctx.astep("fetch", lambda: fetch(url))``.

        Storing the result does not block the event loop; several steps with different names may
        run at once.
        """
        # Imported only when needed: every attempt pays for the start of its child.
        import asyncio

        with self._numbered_step(str(name)) as step:
            if step not in self._steps:
                self._channel.send("activity", activity="step_running", step=step)
                awaitable = work()
                if not hasattr(awaitable, "__await__"):
                    raise TypeError(f"step {step!r} did not return an awaitable: use 'ctx.step(…)'")
                result = _as_json(step, await awaitable)
                await asyncio.to_thread(self._channel.report_step, step, result)
                self._steps[step] = result
            return self._steps[step]  # type: ignore[no-any-return]

    @contextlib.contextmanager
    def _numbered_step(self, name: str) -> Iterator[str]:
        """Yield the step's name, with a number from the second call with this name on."""
        _, hash_sign, number = name.rpartition("#")
        if hash_sign and number.isdigit():
            raise ValueError(f"a step's name must not end in a number sign and digits: {name!r}")
        with self._steps_lock:
            if name in self._running_steps:
                raise StepNameTaken(name)
            self._running_steps.add(name)
            calls = self._step_calls[name] = self._step_calls.get(name, 0) + 1
        try:
            yield name if calls == 1 else f"{name}#{calls}"
        finally:
            self._running_steps.discard(name)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Report progress, such as ``ctx.progress(3, 10, "pages")``.

        It appears as a line in the output and in the next heartbeat. Call it as often as you like:
        of many calls in a short time some are dropped, but never the one that reaches ``total``.
        """
        done_number, total_number = _finite_number(done), _finite_number(total)
        if done_number is None:
            return
        progress = (done_number, total_number)
        reached = done_number == total_number and progress != self._last_progress
        self._throttle = self._throttle or Throttle()
        if reached or self._throttle.try_acquire():
            self._last_progress = progress
            self._channel.send(
                "progress", done=done_number, total=total_number, text=_single_line(text)
            )

    def log(self, text: str) -> None:
        """Write a line to the task's output, in its ``log`` stream; a very long one is divided."""
        line = str(text)
        for start in range(0, len(line) or 1, _LOG_CHARACTERS):
            self._channel.send("log", text=line[start : start + _LOG_CHARACTERS])

    def summary(self, text: str) -> None:
        """Describe the result of the work in one line; call it again to add another line.

        It appears as a line in the output, in the next heartbeat, and in ``logs/summary.log`` among
        the stored files of the attempt.
        """
        if not (line := _single_line(text)):
            return
        self._channel.send("summary", text=line)
        # The worker has the summary already: a full disk must not fail the task.
        with contextlib.suppress(OSError):
            folder = os.path.join(self.folder, "logs")
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(os.path.join(folder, "summary.log"), "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def artifact(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Store a copy of a file, or of all files of a folder, also if the attempt fails later.

        The worker stores artifacts when the attempt has ended. Files that the task writes directly
        into ``artifacts/`` below ``ctx.folder`` are stored too, without this call.

        Args:
            name: The artifact's name, which may contain slashes; by default the last part of
                ``path``.

        Returns:
            The name under which the artifact is stored.

        Raises:
            FileNotFoundError: ``path`` does not exist.
        """
        from longshore.execution.runners.artifacts import copy_artifact

        folder = os.path.join(self.folder, "artifacts")
        stored, skipped = copy_artifact(os.fspath(path), folder, name)
        if skipped:
            examples = ", ".join(skipped[:3])
            self.log(f"not stored with {stored}, as they are not files of that folder: {examples}")
        return stored

    def close(self) -> None:
        """Undo the context's changes to the process: restore the handler of SIGTERM."""
        if self._sigterm is not None:
            self._sigterm.restore()


class SigtermHandler:
    """Handles SIGTERM for a task that reads ``ctx.cancelled``."""

    def __init__(self) -> None:
        self._received = False
        self._installed_in: int | None = None  # the process
        self._previous_handler: Any = None

    def received(self) -> bool:
        """Whether SIGTERM arrived since the first call, which installs the handler.

        Raises:
            RuntimeError: the first call is not in the main thread.
        """
        if self._installed_in is None:
            self._install()
        return self._received

    def _install(self) -> None:
        try:
            self._previous_handler = signal.signal(signal.SIGTERM, self._handle)
        except ValueError as error:
            message = "read ctx.cancelled in the main thread first, to install its handler"
            raise RuntimeError(message) from error
        self._installed_in = os.getpid()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() == self._installed_in:
            self._received = True
            return
        # A fork of the task, as multiprocessing makes: it does not check the flag and must end.
        self.restore()
        os.kill(os.getpid(), number)

    def restore(self) -> None:
        """Restore the previous handler of SIGTERM."""
        if self._installed_in is not None:
            # None: the previous handler was not installed from Python.
            signal.signal(signal.SIGTERM, self._previous_handler or signal.SIG_DFL)
            self._installed_in = None


def _as_json(name: str, result: Any) -> Any:
    """Returns the result as a later attempt gets it."""
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        raise TypeError(f"step {name!r} returned an awaitable: use 'await ctx.astep(…)'")
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(f"the result of step {name!r} cannot be stored as JSON: {error}") from error


def _finite_number(value: Any) -> float | None:
    """Returns the number, or None if it is not finite: reporting progress never fails a task."""
    if type(value) is int:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _single_line(text: object) -> str:
    """Returns the text as one line, with secrets masked and its length limited."""
    return safe_excerpt(" ".join(str(text).split()), limit=LINE_LIMIT_CHARACTERS)


_current: ContextVar[Context] = ContextVar("longshore_context")


def current() -> Context:
    """Returns the context of the attempt in which this code runs.

    Raises:
        LookupError: this code does not run inside a task.
    """
    return _current.get()


def set_current(context: Context) -> None:
    """Make a context the current one of this process."""
    _current.set(context)
