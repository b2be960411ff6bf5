"""The commits of a run by true time, and checks that their effects follow soon enough.

The sweeper repairs what the dispatcher misses, so the final state does not show whether the
dispatcher works. These checks run during the simulation: a process that acknowledges an event must
have handled it, and without faults a job records an end long before a sweep would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longshore.core.events import types as e
from longshore.core.events.event import Event
from longshore.core.tasks.rows import IntentKind, JobRow, TaskRow
from longshore.core.tasks.states import TaskState

if TYPE_CHECKING:
    from verification.simulation.simulation import Simulation


_END_EVENTS = frozenset(
    event.TYPE for event in (e.TaskCompleted, e.TaskFailed, e.TaskTimeout, e.TaskCancelled)
)
# Shorter than the sweeper's grace, and longer than a dispatch without faults.
_MAX_DISPATCH_DELAY_S = 20.0
_ALL_ROWS = 100_000
StepId = tuple[str, str | None, str]
"""The task, the reviewer's feedback, and the name of the step."""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A worker has claimed a task."""

    at: float
    task_id: str
    job_id: str
    round: int
    attempt: int


class History:
    """Observes every commit."""

    def __init__(self, simulation: Simulation) -> None:
        self.claims: list[ClaimRecord] = []
        self.previous_rows: dict[str, TaskRow] = {}  # by task: its row before the last commit
        self._resumed_at: dict[str, list[float]] = {}  # by job
        self._waiting_since: dict[str, float] = {}  # by task
        self._ended_at: dict[tuple[str, int], float] = {}  # by job and number
        self._change_events: dict[str, asyncio.Event] = {}  # by row
        self._simulation = simulation

    async def wait_for_change(self, row_ids: Sequence[str], *, timeout_s: float) -> None:
        """Return when one of these rows has changed, or after the timeout."""
        changed = asyncio.Event()
        for row_id in row_ids:
            self._change_events[row_id] = changed
        waiting = asyncio.ensure_future(changed.wait())
        try:
            await asyncio.wait((waiting,), timeout=timeout_s)
        finally:
            waiting.cancel()

    def _notify_change(self, row_id: str) -> None:
        if (changed := self._change_events.pop(row_id, None)) is not None:
            changed.set()

    def on_task_commit(self, old: TaskRow | None, new: TaskRow) -> None:
        """A task's row has changed."""
        self._notify_change(new.id)
        now, spec = self._simulation.time(), new.spec
        if old is not None:
            self.previous_rows[new.id] = old
            if new.attempt > old.attempt:
                self.claims.append(ClaimRecord(now, new.id, spec.job_id, new.round, new.attempt))
        was = old.state if old else None
        if new.state is TaskState.WAITING and was is not TaskState.WAITING:
            self._waiting_since[new.id] = now
        if new.state.terminal and not (was and was.terminal):
            self._ended_at[spec.job_id, spec.number] = now

    def on_job_commit(self, old: JobRow, new: JobRow) -> None:
        """A job's row has changed."""
        self._notify_change(new.id)
        now, calm_from = self._simulation.time(), self._simulation.calm_from
        if new.round > old.round:
            self._resumed_at.setdefault(new.id, []).append(now)
        if now < calm_from:
            return
        for number in new.ended - old.ended:
            ended_at = self._ended_at.get((new.id, number), now)
            if ended_at >= calm_from and now - ended_at > _MAX_DISPATCH_DELAY_S:
                text = f"recorded the end of task {number} only {now - ended_at:.1f} s later"
                self._simulation.report_violation(0, new.id, text)

    def was_resumed(self, job_id: str, moment: float, until: float) -> bool:
        """Whether tasks of the job were resumed in that time."""
        return any(moment <= at <= until for at in self._resumed_at.get(job_id, ()))

    async def on_acknowledged(self, who: str, events: Sequence[Event], received_at: float) -> None:
        """A process has acknowledged these events: their effects must be there."""
        for event in events:
            if event.type not in _END_EVENTS:
                continue
            row = await self._simulation.backend.ledger.get_task(event.entity_id)
            # A task that was resumed since has nothing to report.
            if row is None or row.last_sequence != event.sequence:
                continue
            if (left := await self.missing_effect(row, received_at)) is not None:
                text = f"{who} acknowledged its {event.type}, but {left}"
                self._simulation.report_violation(6, row.id, text)

    async def on_answered(self, answer: TaskRow, requested_at: float) -> None:
        """A client got a task's row as an answer: if it has ended, its effects must be there."""
        row = await self._simulation.backend.ledger.get_task(answer.id)
        if row is None or row.round != answer.round or not answer.state.terminal:
            return
        if (left := await self.missing_effect(row, requested_at)) is not None:
            self._simulation.report_violation(6, row.id, f"was answered as {row.state}, but {left}")

    async def missing_effect(self, row: TaskRow, since: float) -> str | None:
        """Returns an effect of the task's end that is missing, or None.

        Args:
            since: Dependents that began to wait after this time are left out: another process may
                have to notify them.
        """
        number, ledger = row.spec.number, self._simulation.backend.ledger
        job = await ledger.get_job(row.spec.job_id)
        if job is None or not row.state.terminal:
            return None
        if number not in job.ended and not _is_being_resumed(job, number):
            return "its job has not recorded it"
        if row.state is not TaskState.COMPLETED:
            return None
        others = await ledger.list_tasks(row.spec.tenant, job_id=job.id, limit=_ALL_ROWS)
        for other in others.items:
            waits = other.state is TaskState.WAITING and number in other.awaits
            if waits and self._waiting_since.get(other.id, since) < since:
                return f"{other.id} still waits for it"
        return None


def _is_being_resumed(job: JobRow, number: int) -> bool:
    return any(
        intent.kind is IntentKind.RESUME and number in intent.numbers for intent in job.intents
    )


@dataclass(slots=True)
class AttemptRecord:
    """What really happened to an attempt."""

    process: str
    task_id: str
    attempt: int
    fence: int
    started_at: float
    ended_at: float | None = None
    succeeded: bool = False
    machine_paused: bool = False  # during the attempt, or its lease before


@dataclass(slots=True)
class AttemptRecords:
    """All attempts of a run."""

    all: list[AttemptRecord] = field(default_factory=list)
    saved_steps: dict[StepId, None] = field(default_factory=dict)
    repeated_steps: list[tuple[AttemptRecord, str]] = field(
        default_factory=list
    )  # steps whose result was saved
