"""What a running task may ask of Longshore.

Steps that are kept, progress, a word in the log, a summary, files that stay, and whether anybody
wants the attempt to end. Everything but files goes through the channel; files go into the folder of
the attempt, from where the worker takes them when the attempt has ended, however it ended.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from longshore.core.sanitise import safe_excerpt
from longshore.runners.ending import Sigterm
from longshore.runners.pace import Pace

ResultT = TypeVar("ResultT")

LINE_CHARACTERS = 500
"""Longer summaries are cut; longer texts of a progress, too."""


class Says(Protocol):
    """Where a context says things: a ``Channel``, or what stands in for it without a worker."""

    def say(self, kind: str, **content: Any) -> None:
        """Send one message."""
        ...

    def step(self, name: str, result: Any) -> None:
        """Report a finished step; return when its result is kept."""
        ...


class Context:
    """The attempt that is being carried out, seen from inside.

    Args:
        wanted_to_end: Tells whether somebody wants the attempt to end; SIGTERM if it is not given.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        channel: Says,
        *,
        wanted_to_end: Callable[[], bool] | None = None,
    ) -> None:
        self.task_id: str = order["task_id"]
        self.job_id: str = order["job_id"]
        self.attempt: int = order["attempt"]
        self.dependency_outputs: Mapping[str, Any] = order["dependency_outputs"]
        self.feedback: str | None = order["feedback"]
        self.previous_output: Any = order["previous_output"]
        # Now, because the task may go elsewhere.
        self.folder: str = order.get("folder") or os.getcwd()
        self._steps = dict(order["checkpoints"])
        self._channel = channel
        self._progress_pace = Pace()
        self._progressed: tuple[float, float | None] | None = None
        self._sigterm = Sigterm()
        self._wanted_to_end = wanted_to_end or self._sigterm.came

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of this task: give it to services that tell repeats apart."""
        return self.task_id

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants this attempt to end: a user, its timeout, a worker that stops.

        The worker asks by SIGTERM, and kills what still runs after ``worker.kill_grace``. A task
        that never looks here is ended by the SIGTERM itself. The first look takes it in hand:
        from then on SIGTERM only makes this True, and the task has to look again, tidy up and
        return before it is killed. What it returns then is not its result; steps that it finishes
        are kept. The first look has to be in the main thread, later ones may be anywhere.
        """
        return self._wanted_to_end()

    def step(self, name: str, work: Callable[[], ResultT]) -> ResultT:
        """Do a part of the work once: a later attempt gets the kept result instead.

        The result is what JSON makes of it (a tuple comes back as a list), in the attempt that
        did the work as in those after it. In an async function use ``astep``.

        Args:
            name: Its own for each step of the task.
        """
        name = str(name)
        if name not in self._steps:
            self._begins(name)
            result = _kept_form(name, work())
            self._channel.step(name, result)
            self._steps[name] = result
        return self._steps[name]  # type: ignore[no-any-return]

    async def astep(self, name: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """As ``step``, for async work: ``await ctx.astep("fetch", lambda: fetch(url))``.

        While the result is being kept, others on the event loop go on; several steps may be under
        way at once.
        """
        # Only for those who need it: a child's start is paid by every attempt.
        import asyncio

        name = str(name)
        if name not in self._steps:
            self._begins(name)
            waited_for = work()
            if not hasattr(waited_for, "__await__"):
                message = f"step {name!r} gave nothing to wait for: use 'ctx.step(…)'"
                raise TypeError(message)
            result = _kept_form(name, await waited_for)
            await asyncio.to_thread(self._channel.step, name, result)
            self._steps[name] = result
        return self._steps[name]  # type: ignore[no-any-return]

    def _begins(self, step: str) -> None:
        self._channel.say("activity", activity="step_running", step=step)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """How far the work is, such as ``ctx.progress(3, 10, "pages")``.

        It is a line in the output and what the next heartbeat tells. Call it as often as you
        like: of many in a short time some are passed over, but never the one that reaches
        ``total``.
        """
        so_far, in_all = _number(done), _number(total)
        if so_far is None:
            return
        reached = so_far == in_all and (so_far, in_all) != self._progressed
        if reached or self._progress_pace.allows():
            self._progressed = (so_far, in_all)
            self._channel.say("progress", done=so_far, total=in_all, text=_line(text))

    def log(self, text: str) -> None:
        """A line in the task's output that did not come from ``print``."""
        self._channel.say("log", text=str(text))

    def summary(self, text: str) -> None:
        """One line that tells a person what came of the work; call it again to add another.

        It is a line in the output, what the next heartbeat tells, and a line of
        ``logs/summary.log`` among the files that are kept of the attempt.
        """
        if not (line := _line(text)):
            return
        self._channel.say("summary", text=line)
        folder = os.path.join(self.folder, "logs")
        # The worker has heard it: no task fails because its disk is full of other things.
        with contextlib.suppress(OSError):
            os.makedirs(folder, mode=0o700, exist_ok=True)
            with open(os.path.join(folder, "summary.log"), "a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def artifact(self, path: str | os.PathLike[str], name: str | None = None) -> str:
        """Keep a file, or all files of a folder, as they are now; also if the attempt fails later.

        The worker stores them when the attempt has ended. What is written straight into
        ``artifacts/`` below ``ctx.folder`` is kept as well, without this.

        Args:
            name: What to call it, with slashes if you like; by default the last part of ``path``.

        Returns:
            The name under which it will be found.

        Raises:
            FileNotFoundError: there is nothing at ``path``.
        """
        from longshore.runners.artifacts import keep

        kept = keep(os.fspath(path), os.path.join(self.folder, "artifacts"), name)
        if kept.left_out:
            some = ", ".join(kept.left_out[:3])
            self.log(f"not kept with {kept.name}, as they are no files of that folder: {some}")
        return kept.name

    def close(self) -> None:
        """Undo what the context did to the process: SIGTERM means again what it did before."""
        self._sigterm.put_back()


def _kept_form(name: str, result: Any) -> Any:
    """The result as a later attempt will get it."""
    if hasattr(result, "__await__"):
        if hasattr(result, "close"):
            result.close()
        message = f"step {name!r} gave something to wait for: use 'await ctx.astep(…)'"
        raise TypeError(message)
    try:
        return json.loads(json.dumps(result, allow_nan=False))
    except (TypeError, ValueError) as error:
        message = f"the result of step {name!r} cannot be kept as JSON: {error}"
        raise TypeError(message) from error


def _number(value: Any) -> float | None:
    """A number as the channel takes it; None for what is none: a task never fails by telling."""
    if type(value) is int:
        return value
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _line(text: object) -> str:
    """One line that may be shown to anybody."""
    return safe_excerpt(" ".join(str(text).split()), limit=LINE_CHARACTERS)


_current: ContextVar[Context] = ContextVar("longshore_context")


def current() -> Context:
    """The context of the attempt that this code runs in.

    Raises:
        LookupError: it does not run inside a task.
    """
    return _current.get()


def enter(context: Context) -> None:
    """Make a context the current one of this process."""
    _current.set(context)
