"""Traces a running agent: a stored trace, log lines, and activity reports.

A tracer never affects the agent. Its hooks decide nothing and do not raise: a hook that raised
would let a tool run untraced or, where hooks may block, block it; a hook that took too long would
block it too. The first error of the tracer itself is logged, and the trace counts all of them.

A tracer belongs to one event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from claude_agent_sdk import HookContext, HookMatcher
from claude_agent_sdk.types import HookEvent, HookInput, HookJSONOutput

from longshore.core.agents.events import (
    AgentEvent,
    ApiRetried,
    StepFinished,
    UsageCounted,
)
from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace import TRACE_FILE, StepTrace, trace_document
from longshore.core.agents.trace_text import event_line, summary_of
from longshore.core.tasks.failures import error_text
from longshore.execution.runners.agent.sdk_events import HOOKS, translate_hook, translate_message
from longshore.execution.runners.channel import Send, Throttle

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
# Outside the folder of stored files: a partial trace must not be stored.
_PARTIAL_FILE = ".session_trace.json"
# A hook that times out blocks its tool, and a slow worker must not cause that.
_HOOK_TIMEOUT_S = 3_600.0


class StepTracer:
    """Traces one step.

    Args:
        now: The time, in UTC.
        session_id: The id of the step's conversation, if it is known before the start.
        resumed: Whether an earlier attempt started that conversation.
        on_change: Called when a message has changed the trace.
        on_summary: Receives the summary line of the step.
    """

    def __init__(
        self,
        step: str,
        send: Send,
        now: Callable[[], datetime],
        *,
        session_id: str | None = None,
        resumed: bool = False,
        on_change: Callable[[], None],
        on_summary: Callable[[str], None],
    ) -> None:
        self._send = send
        self._now = now
        self._on_change = on_change
        self._on_summary = on_summary
        self._trace = StepTrace(step, at=now(), session_id=session_id, resumed=resumed)
        self._activity = ""
        self._throttle = Throttle()
        self._faults = 0

    def hooks(self) -> dict[HookEvent, list[HookMatcher]]:
        """Returns the hooks for ``ClaudeAgentOptions``; others may be added."""
        # If a hook fails nevertheless, in the SDK or in transit, its tool does not run untraced.
        matcher = HookMatcher(hooks=[self._hook], timeout=_HOOK_TIMEOUT_S, on_failure="block")
        # The SDK passes on more events than its type names.
        return {cast("HookEvent", event): [matcher] for event in HOOKS}

    async def _hook(
        self, payload: HookInput, _tool_use_id: str | None, _context: HookContext
    ) -> HookJSONOutput:
        self._log_errors(
            lambda: self._record(translate_hook(cast("Mapping[str, Any]", payload), self._now()))
        )
        return {}

    def on_message(self, message: object) -> None:
        """Record a message of the SDK's query."""
        self._log_errors(lambda: self._record(translate_message(message, self._now())))
        self._log_errors(self._on_change)

    def on_response(self, tokens: TokenCounts, cost_usd: float) -> None:
        """Record the usage of one API response, as the gateway measured it."""
        event = UsageCounted(at=self._now(), tokens=tokens, cost_usd=cost_usd)
        self._log_errors(lambda: self._record((event,)))

    def finish(self, outcome: str | None = None, error: str = "") -> None:
        """Record the end of the step, and report its summary once.

        Args:
            outcome: ``completed``, ``failed``, ``timeout`` …; None: as the last query reported.
        """
        self._log_errors(lambda: self._finish(outcome, error))
        self._log_errors(self._on_change)

    def document(self) -> dict[str, Any]:
        """Returns the current state of the step, for the trace of the attempt."""
        document = self._trace.document(self._now())
        if self._faults:
            document["leftOut"]["faults"] = self._faults
        return document

    def _finish(self, outcome: str | None, error: str) -> None:
        if self._trace.apply(StepFinished(at=self._now(), outcome=outcome, error=error)):
            self._on_summary(summary_of(self._trace))

    def _record(self, events: Iterable[AgentEvent]) -> None:
        for event in events:
            changed = self._trace.apply(event)
            if changed and (line := event_line(event, self._trace)) is not None:
                self._send("log", text=line)
            self._report_activity(event, changed=changed)

    def _report_activity(self, event: AgentEvent, *, changed: bool) -> None:
        if isinstance(event, ApiRetried):
            activity = "waiting"
        else:
            activity = "tool" if self._trace.tools_running else "sdk_query"
        # A report carries its time, so a repeated activity may be worth reporting.
        if activity != self._activity or (changed and self._throttle.try_acquire()):
            self._activity = activity
            self._send("activity", activity=activity, step=self._trace.step)

    def _log_errors(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the tracer must not end the agent
            self._faults += 1
            if self._faults == 1:
                detail = error_text(f"{type(error).__name__}: {error}")
                text = f"{self._trace.step}: longshore could not trace everything ({detail})"
                with contextlib.suppress(Exception):
                    self._send("log", text=text)


class AttemptTrace:
    """The trace of an attempt: its finished steps and the running one.

    The trace is written while the attempt runs, at a limited rate, so that a killed attempt leaves
    a trace too.

    Args:
        folder: The attempt's folder.
        on_summary: ``Context.summary``, for a line about each finished step.
    """

    def __init__(
        self,
        folder: str,
        send: Send,
        now: Callable[[], datetime],
        *,
        on_summary: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._send = send
        self._now = now
        self._on_summary = on_summary
        self._finished_steps: list[dict[str, Any]] = []
        self._running_step: StepTracer | None = None
        self._throttle = Throttle()

    @contextlib.contextmanager
    def trace_step(
        self, step: str, *, session_id: str | None = None, resumed: bool = False
    ) -> Iterator[StepTracer]:
        """Trace a step while the block runs; call the tracer's ``finish`` to record its outcome."""
        tracer = self._running_step = StepTracer(
            step,
            self._send,
            self._now,
            session_id=session_id,
            resumed=resumed,
            on_change=self._write_throttled,
            on_summary=self._on_summary,
        )
        try:
            yield tracer
        finally:
            tracer.finish()
            self._finished_steps.append(tracer.document())
            self._running_step = None
            self._write()

    def record_response(self, tokens: TokenCounts, cost_usd: float) -> None:
        """Record the usage of one API response in the running step, if there is one."""
        if self._running_step is not None:
            self._running_step.on_response(tokens, cost_usd)

    def _write_throttled(self) -> None:
        if self._throttle.try_acquire():
            self._write()

    def _write(self) -> None:
        running = [self._running_step.document()] if self._running_step else []
        # A full disk must not fail the agent.
        with contextlib.suppress(OSError):
            write_trace(self._folder, [*self._finished_steps, *running])


def write_trace(folder: str, documents: Sequence[dict[str, Any]]) -> None:
    """Write the trace of an attempt atomically, from the documents of its steps.

    Raises:
        OSError: it cannot be written; the previous trace is unchanged.
    """
    path, partial = os.path.join(folder, TRACE_FILE), os.path.join(folder, _PARTIAL_FILE)
    os.makedirs(os.path.dirname(path), mode=_FOLDER_MODE, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(partial)
    # Do not follow a link that the agent may have created.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    text = json.dumps(trace_document(documents), ensure_ascii=False, separators=(",", ":"))
    with os.fdopen(os.open(partial, flags, _FILE_MODE), "wb") as file:
        file.write(text.encode(errors="replace"))
    os.replace(partial, path)
