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
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

from claude_agent_sdk import HookContext, HookMatcher
from claude_agent_sdk.types import HookEvent, HookInput, HookJSONOutput

from longshore.core.agents.prices import TokenCounts
from longshore.core.agents.trace import TRACE_FILE, TRACE_VERSION, StepTrace
from longshore.core.tasks.failures import error_text
from longshore.execution.runners.agent.sdk_events import HOOKS, record_hook, record_message
from longshore.execution.runners.channel import Send, Throttle

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
# Outside the folder of stored files: a partial trace must not be stored.
_PARTIAL_FILE = ".session_trace.json"
# A hook that times out blocks its tool, and a slow worker must not cause that.
_HOOK_TIMEOUT_S = 3_600.0


@dataclass(slots=True, eq=False, repr=False)
class AgentTracer:
    """Traces the steps of an attempt, one after the other.

    The trace is written while the attempt runs, at a limited rate, so that a killed attempt leaves
    a trace too.

    Args:
        folder: The attempt's folder.
        now: The time, in UTC.
        on_summary: ``Context.summary``, for a line about each finished step.
    """

    folder: str
    send: Send
    now: Callable[[], datetime]
    on_summary: Callable[[str], None]
    step: StepTrace = field(init=False)
    """The running step, or else the last one; before the first a nameless one."""
    _finished_steps: list[dict[str, Any]] = field(default_factory=list)
    _write_throttle: Throttle = field(default_factory=Throttle)
    _activity: str = ""
    _activity_throttle: Throttle = field(default_factory=Throttle)
    _faults: int = 0

    def __post_init__(self) -> None:
        self.step = StepTrace("", started_at=self.now())

    @contextlib.contextmanager
    def trace_step(
        self, step: str, *, session_id: str | None = None, resumed: bool = False
    ) -> Iterator[None]:
        """Trace a step while the block runs; call ``finish`` to record its outcome.

        Args:
            session_id: The id of the step's conversation, if it is known before the start.
            resumed: Whether an earlier attempt started that conversation.
        """
        self.step = StepTrace(step, started_at=self.now(), session_id=session_id, resumed=resumed)
        self._activity, self._faults = "", 0
        try:
            yield
        finally:
            self.finish()
            self._finished_steps.append(self.document())
            self._write(self._finished_steps)

    def _write(self, documents: Sequence[dict[str, Any]]) -> None:
        # A full disk must not fail the agent.
        with contextlib.suppress(OSError):
            write_trace(self.folder, documents)

    def hooks(self) -> dict[HookEvent, list[HookMatcher]]:
        """Returns the hooks for ``ClaudeAgentOptions``; others may be added."""
        # If a hook fails nevertheless, in the SDK or in transit, its tool does not run untraced.
        matcher = HookMatcher(hooks=[self._hook], timeout=_HOOK_TIMEOUT_S, on_failure="block")
        return {event: [matcher] for event in HOOKS}

    async def _hook(
        self, payload: HookInput, _tool_use_id: str | None, _context: HookContext
    ) -> HookJSONOutput:
        with self._logged_errors():
            self._record(record_hook(self.step, cast("Mapping[str, Any]", payload), self.now()))
        return {}

    def on_message(self, message: object) -> None:
        """Record a message of the SDK's query."""
        with self._logged_errors():
            self._record(record_message(self.step, message, self.now()))
        with self._logged_errors():
            if self._write_throttle.try_acquire():
                self._write([*self._finished_steps, self.document()])

    def on_response(self, turn_id: str | None, tokens: TokenCounts, cost_usd: float) -> None:
        """Record the usage of one API response, as the gateway measured it."""
        with self._logged_errors():
            self.step.usage_measured(turn_id, tokens, cost_usd)

    def finish(self, outcome: str | None = None, error: str = "") -> None:
        """Record the end of the step, and report its summary once.

        Args:
            outcome: ``completed``, ``failed``, ``timeout`` …; None: as the last query reported.
        """
        with self._logged_errors():
            if (summary := self.step.finish(self.now(), outcome, error)) is not None:
                self.on_summary(summary)

    def document(self) -> dict[str, Any]:
        """Returns the current state of the step."""
        document = self.step.document(self.now())
        if self._faults:
            document["leftOut"]["faults"] = self._faults
        return document

    def _record(self, lines: Iterable[str | None]) -> None:
        retries = self.step.counts["retries"]
        for line in lines:
            if line is not None:
                self.send("log", text=line)
            activity = "step_running" if self.step.tools_running else "sdk_query"
            waiting = self.step.counts["retries"] > retries
            self._report_activity("waiting" if waiting else activity)

    def _report_activity(self, activity: str) -> None:
        # A report carries its time, so a repeated activity may be worth reporting.
        if activity != self._activity or self._activity_throttle.try_acquire():
            self._activity = activity
            self.send("activity", activity=activity, step=self.step.step)

    @contextlib.contextmanager
    def _logged_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the tracer must not end the agent
            self._faults += 1
            if self._faults == 1:
                detail = error_text(f"{type(error).__name__}: {error}")
                text = f"{self.step.step}: longshore could not trace everything ({detail})"
                with contextlib.suppress(Exception):
                    self.send("log", text=text)


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
    text = json.dumps(
        {"version": TRACE_VERSION, "steps": list(documents)},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    with os.fdopen(os.open(partial, flags, _FILE_MODE), "wb") as file:
        file.write(text.encode(errors="replace"))
    os.replace(partial, path)
