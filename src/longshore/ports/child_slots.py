"""Child slots: children that stay with the worker and take python tasks without per-task setup.

A slot has one child at a time. A child of a ``pool`` slot takes one task after another; a child of
a ``fork`` slot takes one task, and the next child is forked when nothing of it is left. Agents,
commands, ``isolation: spawn``, terminals and definitions with limits or secrets need
``ports.runner``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from longshore.core.definitions.definition import UNLIMITED, Definition, Isolation, RunnerKind
from longshore.core.documents import EncodedJson
from longshore.core.tasks.failures import Failure
from longshore.ports.runner import ChildReport


def runs_in_slot(definition: Definition) -> bool:
    """Whether tasks of the definition can be given to a slot."""
    return (
        definition.runner is RunnerKind.PYTHON
        and definition.isolation in (Isolation.POOL, Isolation.FORK)
        and not definition.pty
        and definition.resources == UNLIMITED
        and not definition.secrets
    )


@dataclass(slots=True)
class SlotTask:
    """A task to be given to a slot. JSON is passed as the text that is stored.

    Use one definition object for all tasks of a version: its options are encoded once.
    """

    number: int  # identifies the task on this machine; positive, below 2**63
    fence: int
    tenant: str
    task_id: str
    job_id: str
    attempt: int
    definition: Definition
    input: str = "null"
    dependency_outputs: str | None = None  # an object: results by the key of the dependency
    checkpoints: str | None = None  # an object: results by the name of the step
    feedback: str | None = None
    previous_output: str | None = None


@dataclass(slots=True)
class SlotOutcome:
    """How a task ended: with a result as JSON, or with a failure."""

    number: int
    result: str | EncodedJson | None
    failure: Failure | None
    duration_ns: int
    folder: Path | None  # the attempt's folder; None: it was not created
    peak_rss_bytes: int | None = None  # None: unknown, as in a pool


class ChildEndCause(StrEnum):
    """Why the child of a slot ended."""

    RETIRED = "retired"  # by itself between two tasks: its age, a thread or a process left behind
    REPLACED = "replaced"  # by ``replace``
    KILLED = "killed"  # by ``kill``
    DEADLINE = "deadline"  # a task was begun when the time of ``trust_until`` passed
    PROCESSES = "processes"  # it had more processes than the worker allows
    INVALID_REPORT = "invalid-report"  # it sent something that is not a report
    CRASHED = "crashed"  # by itself, while a task was begun or before
    LOST = "lost"  # its reaper or the fork server ended


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnding:
    """The child of a slot ended, and so did everything that it had started.

    Every task that was given and for which there was no event is named here, once.
    """

    cause: ChildEndCause
    begun: int | None  # the task that had begun and did not finish
    not_begun: tuple[int, ...]  # may be given again, to this slot or to another
    failure: Failure | None  # of the task that had begun
    folder: Path | None  # of the task that had begun, if it was created
    signal: str | None = None
    peak_rss_bytes: int | None = None
    slot_closed: bool = False  # the slot cannot be used any more: open another


class SlotListener(Protocol):
    """Is called by ``ChildSlots`` on the event loop, never from inside a method of ``ChildSlots``
    other than ``close``.

    A task that was given is the subject of exactly one of ``outcome``, ``too_late``,
    ``ChildEnding.begun``, ``ChildEnding.not_begun``, and the return value of ``take_back`` or
    ``kill``. All its reports come before, and so does its output, which they include.
    """

    def outcome(self, slot: int, outcome: SlotOutcome) -> None:
        """A task ended. Nothing that it started is alive, except in ``pool`` the child itself."""
        ...

    def too_late(self, slot: int, number: int) -> None:
        """A task was not begun, because the time of ``trust_until`` had passed."""
        ...

    def report(self, slot: int, number: int, report: ChildReport) -> None:
        """A task sent a report. A ``StepReport`` waits for ``confirm_step``."""
        ...

    def child_ended(self, slot: int, ending: ChildEnding) -> None:
        """The child of a slot ended; in ``fork`` only if there is no outcome. Unless the slot is
        closed, tasks can be given to it at once."""
        ...


class ChildSlots(Protocol):
    """The child slots of one worker.

    Except ``open_slot`` and ``close`` nothing waits: what cannot be done at once is answered.
    """

    async def open_slot(self, isolation: Isolation) -> int:
        """Open a slot for ``pool`` or ``fork``. Returns its number.

        Nothing is begun before the first ``trust_until``.

        Raises:
            UsageError: a configured module cannot be loaded, or the system is not Linux.
            BackendUnavailable: no process can be started now.
        """
        ...

    def give(self, slot: int, task: SlotTask) -> bool:
        """Give a task to a slot; tasks begin in the order in which they are given.

        Returns False, and does nothing, if the slot cannot take it now: its queue is full, its
        child is about to end (an event follows), or, in ``fork``, it has a task. The worker gives
        at most 600 tasks before it has stored the outcomes of the earlier ones; otherwise the
        record of what was begun is incomplete.

        Raises:
            OSError: the record of the task cannot be written; the slot has nothing of it.
            ValueError: the slot has a task of that number; or its child has served another tenant:
                call ``replace`` and wait for ``child_ended``; or the definition needs another slot.
        """
        ...

    def take_back(self, slot: int) -> Sequence[int]:
        """Take back what was not begun, without the help of the child. Returns their numbers."""
        ...

    def kill(self, slot: int, *, grace: timedelta) -> Sequence[int]:
        """End the child: take back what was not begun, send SIGTERM, and SIGKILL after ``grace``
        to all that it has started. ``child_ended`` follows, after the outcome if there still is
        one; in ``fork`` one of them.

        Returns what was taken back. Safe to call again, with a shorter grace period.
        """
        ...

    def replace(self, slot: int) -> None:
        """End the child of a ``pool`` when it has finished what it was given; ``child_ended``
        follows. In ``fork`` this is needed for an idle child only: there each task has its own."""
        ...

    def trust_until(self, slot: int, deadline_ns: int) -> None:
        """Set the moment (``CLOCK_BOOTTIME``) until which tasks may begin and run.

        The reaper kills the child if a task is begun when it passes, also if the worker is stopped.
        """
        ...

    def confirm_step(self, slot: int, number: int, name: str) -> None:
        """Confirm to a task that the result of its step is stored."""
        ...

    def pause_output(self, slot: int) -> None:
        """Read no more output of the slot until ``resume_output``: its tasks wait when they print.

        What a child has written when it ends is read in any case.
        """
        ...

    def resume_output(self, slot: int) -> None:
        """Read the output of the slot again."""
        ...

    def process_id(self, slot: int) -> int:
        """Returns the process id of the slot's child; 0 if there is none now."""
        ...

    def release_folder(self, folder: Path) -> None:
        """Remove the folder of a task that ended, soon."""
        ...

    async def close(self) -> None:
        """Kill all children and wait for their end; ``child_ended`` is called for each."""
        ...
