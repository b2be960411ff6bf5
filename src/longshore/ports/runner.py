"""The runner: carries out one attempt in a child process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from longshore.core.definition import Definition
from longshore.core.events.types import Activity, Usage
from longshore.core.failures import Failure
from longshore.ports.output import Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOrder:
    """All that a child needs to know of the attempt it is to carry out."""

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
    sessions: Mapping[str, Session] = field(default_factory=dict)
    budgeted: bool = False  # whether it has to ask before it spends anything


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A conversation with a model, as far as earlier attempts have brought it."""

    before: list[Any] = field(default_factory=list)  # what came before this revision
    entries: list[Any] = field(default_factory=list)  # what is of this revision


@dataclass(frozen=True, slots=True)
class Printed:
    """The child wrote to one of its output streams."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class Active:
    """The child says what it is doing."""

    activity: Activity


@dataclass(frozen=True, slots=True)
class StepDone:
    """The child finished a named step and waits until its result is kept."""

    name: str
    result: Any


@dataclass(frozen=True, slots=True)
class Conversed:
    """A conversation of the child's with a model has grown; what is kept of it lets a later attempt
    go on where this one ended."""

    session: str
    entries: list[Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """The child wants to spend something, and waits until it is told whether it may."""

    number: int  # its own for each that it asks for
    step: str
    spent: Usage  # so far in this attempt
    wanted: Usage  # what this will come to, as far as it can be told before


@dataclass(frozen=True, slots=True)
class Used:
    """The child says what it has consumed so far in this attempt."""

    usage: Usage
    settles: int | None = None  # the number of what it had asked for, and which is over


@dataclass(frozen=True, slots=True)
class Progressed:
    """The child says how far it is; ``text`` is one line that may be shown to anybody."""

    done: float
    total: float | None = None
    text: str = ""

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {_plain(self.total)}"
        part = ""
        if self.total and self.done <= self.total:
            # Rounded down: nothing is done before it is.
            part = f" ({int(100 * self.done / self.total)}%)"
        return f"{_plain(self.done)}{of}{part}" + (f", {self.text}" if self.text else "")


def _plain(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:g}"


@dataclass(frozen=True, slots=True)
class Summarised:
    """The child says in one line what came of its work; it may be shown to anybody."""

    text: str


Report = Printed | Active | StepDone | Conversed | Asked | Used | Progressed | Summarised


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How an attempt ended: with a result, or with a failure."""

    failure: Failure | None = None
    result: Any = None
    exit_code: int | None = None
    signal: str | None = None  # what ended it, if a signal did
    peak_rss_bytes: int | None = None  # the most memory it was seen to use, if that is known


class RunningAttempt(Protocol):
    """A child at work."""

    @property
    def process_id(self) -> int:
        """The child's, which leads its own session and process group."""
        ...

    @property
    def folder(self) -> Path | None:
        """Where the child works; it is there until ``close``. None for a runner without one."""
        ...

    def reports(self) -> AsyncIterator[Report]:
        """What the child prints and says, in order; ends when the child has ended and its output
        is drained. Somebody else who holds its pipes cannot keep this from ending."""
        ...

    async def step_kept(self, name: str) -> None:
        """Tell the child that a finished step's result is kept."""
        ...

    async def answer(self, number: int, *, stop: str | None) -> None:
        """Tell the child whether it may spend what it asked for: None, or why not."""
        ...

    async def ending(self) -> Ending:
        """How it ended; returns after ``reports`` has."""
        ...

    async def stop(self, *, grace: timedelta) -> str:
        """SIGTERM to the whole group, SIGKILL after ``grace``; returns the signal that ended it.

        When this returns, no process of the group is alive. Safe to call twice and after the end.
        """
        ...

    def rss_bytes(self) -> int:
        """Memory in use by the child now; 0 if it is not known."""
        ...

    async def close(self) -> None:
        """Let go of what is left of an attempt that has ended: its folder too, unless folders are
        kept. Safe to call twice."""
        ...


class Runner(Protocol):
    """Starts children."""

    async def open(self) -> None:
        """Get ready to start children, so that the first one need not wait.

        Raises:
            UsageError: what it was told to load cannot be loaded.
            BackendUnavailable: there is no process to be had now; ``start`` tries again.
        """
        ...

    async def close(self) -> None:
        """End whatever is left. Safe to call twice."""
        ...

    async def start(self, order: WorkOrder) -> RunningAttempt:
        """Start one.

        Raises:
            UsageError: the order can never be carried out (no such command, bad options).
            BackendUnavailable: no child could be started now (out of processes, out of memory).
        """
        ...
