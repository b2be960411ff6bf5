"""Watching an agent at work: a trace that is kept, lines for whoever looks on, signs of life.

An observer is never in the way. Its hooks decide nothing and cannot fail: one that raised would let
a tool through unseen or, where hooks may block, stop it; one that took too long would stop it too.
What goes wrong in the watching itself is said once and counted in the trace.

All of it belongs to one event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, cast

from claude_agent_sdk import HookContext, HookMatcher
from claude_agent_sdk.types import HookEvent, HookInput, HookJSONOutput

from longshore.core.agents.happenings import (
    Counted,
    Finished,
    Happening,
    Retried,
    Tokens,
    tokens_of,
)
from longshore.core.agents.trace import FILE, StepTrace, trace_document
from longshore.core.agents.trace_words import line_of, summary_of
from longshore.core.failures import error_text
from longshore.runners.agent.heard import HOOKS, from_hook, from_message
from longshore.runners.pace import Pace

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
# Outside the folder whose files are kept: half a trace is not to be found among them.
_UNFINISHED = ".session_trace.json"
# A hook that is late blocks its tool, and a worker that is slow to listen must not.
_HOOK_TIMEOUT_S = 3_600.0


class Say(Protocol):
    """How the worker is told: ``Channel.say``."""

    def __call__(self, kind: str, /, **content: Any) -> None:
        """Send one message."""
        ...


class Observer:
    """Watches one step.

    Args:
        now: The time, in UTC.
        session_id: Of the step's conversation, if it is known before it begins.
        resumed: Whether an earlier attempt began that conversation.
        changed: Called when a message has added to the trace.
        summarise: Where the line goes that sums the step up; else it is said like the others.
    """

    def __init__(
        self,
        step: str,
        say: Say,
        now: Callable[[], datetime],
        *,
        session_id: str | None = None,
        resumed: bool = False,
        changed: Callable[[], None] | None = None,
        summarise: Callable[[str], None] | None = None,
    ) -> None:
        self._say = say
        self._now = now
        self._changed = changed
        self._summarise = summarise
        self._trace = StepTrace(step, at=now(), session_id=session_id, resumed=resumed)
        self._activity = ""
        self._pace = Pace()
        self._faults = 0

    def hooks(self) -> dict[HookEvent, list[HookMatcher]]:
        """Hooks for ``ClaudeAgentOptions``; others may stand beside them."""
        # If one fails all the same, in the SDK or on its way, its tool does not run unseen.
        matcher = HookMatcher(hooks=[self._hook], timeout=_HOOK_TIMEOUT_S, on_failure="block")
        # More events than the SDK's type names are passed on.
        return {cast("HookEvent", event): [matcher] for event in HOOKS}

    async def _hook(
        self, told: HookInput, _tool_use_id: str | None, _context: HookContext
    ) -> HookJSONOutput:
        self._watch(lambda: self._take(from_hook(cast("Mapping[str, Any]", told), self._now())))
        return {}

    def message(self, message: object) -> None:
        """Take in what the SDK's query yields."""
        self._watch(lambda: self._take(from_message(message, self._now())))
        self._tell_of_change()

    def answered(
        self,
        model: str | None,
        usage: Mapping[str, Any] | None,
        cost_usd: float,
        *,
        message_id: str | None = None,
    ) -> None:
        """Take in what one answer of the API took, as the gateway saw it.

        Args:
            usage: As the Messages API has it.
            message_id: Of the answer; without it, the figures go to the turn that they fit.
        """
        self._watch(lambda: self._count(model, usage, cost_usd, message_id))

    def finish(self, how: str | None = None, error: str = "") -> None:
        """The step is over, however that came; say once what it took.

        Args:
            how: ``completed``, ``failed``, ``timeout`` …; None: as the last query said.
        """
        self._watch(lambda: self._finish(how, error))
        self._tell_of_change()

    def document(self) -> dict[str, Any]:
        """The step as it is now, for the trace of the attempt."""
        document = self._trace.document(self._now())
        if self._faults:
            document["leftOut"]["faults"] = self._faults
        return document

    def _count(
        self, model: str | None, usage: Mapping[str, Any] | None, cost: float, id_: str | None
    ) -> None:
        tokens = tokens_of(usage) or Tokens()
        counted = Counted(
            at=self._now(), model=model, tokens=tokens, cost_usd=float(cost), turn_id=id_
        )
        self._take((counted,))

    def _finish(self, how: str | None, error: str) -> None:
        if self._trace.take(Finished(at=self._now(), how=how, error=error)):
            line = summary_of(self._trace)
            if self._summarise is None:
                self._say("log", text=line)
            else:
                self._summarise(line)

    def _take(self, told: Iterable[Happening]) -> None:
        for happening in told:
            news = self._trace.take(happening)
            if news and (line := line_of(happening, self._trace)) is not None:
                self._say("log", text=line)
            self._be_active(happening, news=news)

    def _be_active(self, happening: Happening, *, news: bool) -> None:
        if isinstance(happening, Retried):
            activity = "waiting"
        else:
            activity = "tool" if self._trace.tools_running else "sdk_query"
        # Each sign of life has its time, so the same one may be worth saying again.
        if activity != self._activity or (news and self._pace.allows()):
            self._activity = activity
            self._say("activity", activity=activity, step=self._trace.step)

    def _tell_of_change(self) -> None:
        if self._changed is not None:
            self._watch(self._changed)

    def _watch(self, look: Callable[[], None]) -> None:
        try:
            look()
        except Exception as error:  # noqa: BLE001 - who watches must not end what is watched
            self._faults += 1
            if self._faults == 1:
                what = error_text(f"{type(error).__name__}: {error}")
                text = f"{self._trace.step}: longshore could not follow all of this ({what})"
                with contextlib.suppress(Exception):
                    self._say("log", text=text)


class Traces:
    """The trace of an attempt: of the steps that are over, and of the one that runs.

    It is written as the attempt goes on, at a pace, so that one that is killed leaves a trace too.

    Args:
        folder: Of the attempt.
        summarise: ``Context.summary``, for a line on each step at its end.
    """

    def __init__(self, folder: str, summarise: Callable[[str], None] | None = None) -> None:
        self._folder = folder
        self._summarise = summarise
        self._over: list[dict[str, Any]] = []
        self._running: Observer | None = None
        self._pace = Pace()

    @contextlib.contextmanager
    def observing(
        self,
        step: str,
        say: Say,
        now: Callable[[], datetime],
        *,
        session_id: str | None = None,
        resumed: bool = False,
    ) -> Iterator[Observer]:
        """Watch a step until the block is left; ``finish`` it before to say how it ended."""
        observer = self._running = Observer(
            step,
            say,
            now,
            session_id=session_id,
            resumed=resumed,
            changed=self._write_at_a_pace,
            summarise=self._summarise,
        )
        try:
            yield observer
        finally:
            observer.finish()
            self._over.append(observer.document())
            self._running = None
            self._write()

    def _write_at_a_pace(self) -> None:
        if self._pace.allows():
            self._write()

    def _write(self) -> None:
        running = [self._running.document()] if self._running else []
        # No agent's work is lost because a disk is full of other things.
        with contextlib.suppress(OSError):
            write(self._folder, [*self._over, *running])


def write(folder: str, documents: Sequence[dict[str, Any]]) -> None:
    """Write the trace of an attempt, of the documents of its steps: all of it or nothing.

    Raises:
        OSError: it cannot be written; the one before is still there.
    """
    path, unfinished = os.path.join(folder, FILE), os.path.join(folder, _UNFINISHED)
    os.makedirs(os.path.dirname(path), mode=_FOLDER_MODE, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(unfinished)
    # Not through a link that the agent may have put there.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    text = json.dumps(trace_document(documents), ensure_ascii=False, separators=(",", ":"))
    with os.fdopen(os.open(unfinished, flags, _FILE_MODE), "wb") as file:
        file.write(text.encode(errors="replace"))
    os.replace(unfinished, path)
