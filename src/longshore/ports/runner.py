"""The runner: executes each attempt in its own child process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from longshore.core.definitions.definition import Definition
from longshore.core.documents import EncodedJson
from longshore.core.events.types import Activity, Usage
from longshore.core.tasks.failures import Failure
from longshore.errors import UsageError
from longshore.ports.output import Stream


class RunnerBroken(UsageError):
    """No child can be started until the modules that all children need can be loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSpec:
    """All that a child needs to execute an attempt."""

    task_id: str
    job_id: str
    key: str
    tenant: str
    attempt: int
    fence: int
    definition: Definition
    timeout: timedelta
    input: Any = None
    dependency_outputs: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: Mapping[str, Any] = field(default_factory=dict)
    revision: int = 0
    feedback: str | None = None
    previous_output: Any = None
    conversations: Mapping[str, Conversation] = field(default_factory=dict)
    is_long: bool = False  # its documents may be long, so that writing them takes long
    has_budget: bool = False  # whether it must send a spend request before it spends


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A conversation with a model, as earlier attempts left it."""

    earlier_entries: list[Any] = field(default_factory=list)  # before this revision
    entries: list[Any] = field(default_factory=list)  # of this revision


class OutputReport(NamedTuple):
    """The child wrote to one of its output streams."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """The child's current activity."""

    activity: Activity


@dataclass(frozen=True, slots=True)
class StepReport:
    """The child finished a named step and waits until its result is stored."""

    name: str
    result: Any  # a long one is ``EncodedJson``


@dataclass(frozen=True, slots=True)
class ConversationReport:
    """New entries of a conversation between the child and a model; once stored, they let a later
    attempt resume the conversation."""

    conversation: str
    entries: list[Any] | EncodedJson


@dataclass(frozen=True, slots=True)
class SpendRequest:
    """The child asks for permission to spend, and waits for the answer."""

    number: int  # unique within the attempt
    step: str
    spent: Usage  # so far in this attempt
    estimate: Usage  # of the requested work


@dataclass(frozen=True, slots=True)
class UsageReport:
    """What the child has consumed so far in this attempt."""

    usage: Usage
    settled_request: int | None = None  # the spend request whose work has ended


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The child's progress; ``text`` is one line that may be shown to any user."""

    done: float
    total: float | None = None
    text: str = ""

    def __str__(self) -> str:
        of_total = "" if self.total is None else f" of {_format_number(self.total)}"
        percent = ""
        if self.total and self.done <= self.total:
            # Rounded down: 100% only when everything is done.
            percent = f" ({int(100 * self.done / self.total)}%)"
        return f"{_format_number(self.done)}{of_total}{percent}" + (
            f", {self.text}" if self.text else ""
        )


def _format_number(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


@dataclass(frozen=True, slots=True)
class SummaryReport:
    """The child's result in one line, which may be shown to any user."""

    text: str


ChildReport = (
    OutputReport
    | ActivityReport
    | StepReport
    | ConversationReport
    | SpendRequest
    | UsageReport
    | ProgressReport
    | SummaryReport
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnding:
    """How an attempt ended: with a result, or with a failure."""

    failure: Failure | None = None
    result: Any = None  # a long one is ``EncodedJson``
    peak_rss_bytes: int | None = None  # None: unknown


class RunningAttempt(Protocol):
    """A running child."""

    @property
    def process_id(self) -> int:
        """The child's process id; the child leads its own session and process group."""
        ...

    @property
    def folder(self) -> Path | None:
        """The child's working folder, which exists until ``close``; None without one."""
        ...

    def reports(self) -> AsyncIterator[ChildReport]:
        """Yields the child's output and reports in the order of their arrival, until the child has
        ended and its output is drained. Another process that holds its pipes open does not delay
        the end."""
        ...

    async def confirm_step(self, name: str) -> None:
        """Confirm to the child that the result of a finished step is stored."""
        ...

    async def answer_spend_request(self, number: int, *, refusal: str | None) -> None:
        """Answer the child's spend request; ``refusal`` is the reason, or None to permit it."""
        ...

    async def ending(self) -> AttemptEnding:
        """Returns how the attempt ended, after ``reports`` has ended."""
        ...

    async def stop(self, *, grace: timedelta) -> str:
        """Send SIGTERM to the whole group, SIGKILL after ``grace``. Returns the last signal sent.

        When this returns, no process of the group is alive. Safe to call twice and after the end.
        """
        ...

    def trust_until(self, deadline_ns: int) -> None:
        """Move the ``deadline_ns`` of ``Runner.start``."""
        ...

    def rss_bytes(self) -> int:
        """Returns the memory that the child uses now; 0 if unknown."""
        ...

    async def close(self) -> None:
        """Release the resources of an ended attempt, including its folder unless folders are kept.
        Safe to call twice."""
        ...


class Runner(Protocol):
    """Starts attempts."""

    async def open(self) -> None:
        """Prepare to start children, so that the first one need not wait.

        Raises:
            UsageError: a configured module cannot be loaded.
            BackendUnavailable: no process can be started now; ``start`` tries again.
        """
        ...

    async def close(self) -> None:
        """End all remaining children. Safe to call twice."""
        ...

    async def start(self, spec: AttemptSpec, *, deadline_ns: int) -> RunningAttempt:
        """Start an attempt in a child process.

        Args:
            deadline_ns: The moment (``CLOCK_BOOTTIME``) at which everything that belongs to the
                attempt is killed, also if the worker is stopped.

        Raises:
            UsageError: a configured module cannot be loaded.
            BackendUnavailable: no child can be started now (out of processes, out of memory).
        """
        ...
