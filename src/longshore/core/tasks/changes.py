"""Decisions: a change to commit, or a refusal that changes nothing.

A ``Change`` has the new row, the version it was decided from, and its events. The store commits all
of it in one step or nothing. ``effects`` are messages and wake-ups: losing one costs time and never
correctness, because the sweeper finds tasks that were not enqueued.

``Transition`` builds changes: it is the only code that sets a row's version and change id, and the
sequences and times of its events, for tasks and jobs.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar, cast

from longshore.core.events import types as e
from longshore.core.events.event import Event, EventContext, next_moment
from longshore.core.events.types import EventBody
from longshore.core.jobs.numbers import NO_NUMBERS
from longshore.core.records import copy_with, value
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import CancelRequest, JobRow, TaskRow
from longshore.core.tasks.states import Priority, TaskState


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Send the task's message to its queue, visible at ``at``."""

    task_id: str
    queue: str
    priority: Priority
    at: datetime


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the worker that holds a task, so that it reads the row now."""

    worker_id: str
    task_id: str


Effect = Enqueue | Wake

RowT = TypeVar("RowT", TaskRow, JobRow)


@value
class Change(Generic[RowT]):
    """A decision to be committed."""

    row: RowT
    expected_version: int  # 0: the row must not exist yet
    events: tuple[Event, ...] = ()
    effects: tuple[Effect, ...] = ()
    durable: bool = True  # must be durable before the caller is answered


class RefusalReason(Enum):
    """Why a command was refused."""

    UNKNOWN = "there is no such task or job"
    ENDED = "it has ended"
    LEASE_HELD = "another worker holds its lease"
    LEASE_LOST = "the lease has ended or was taken over"
    NOT_DUE = "it is not due yet"
    WRONG_STATE = "its state does not allow this"
    NOTHING_TO_DO = "nothing would change"
    LIMIT_REACHED = "a limit is reached"
    STALE_ROUND = "a newer round has begun"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was changed."""

    reason: RefusalReason
    detail: str
    until: datetime | None = None  # when a repeated command may succeed


@dataclass(slots=True)
class Transition(Generic[RowT]):
    """Builds the change of a row."""

    row: RowT
    now: datetime
    change_id: str
    context: EventContext

    def change(
        self,
        *bodies: EventBody,
        effects: tuple[Effect, ...] = (),
        durable: bool = True,
        **fields: Any,
    ) -> Change[RowT]:
        """Returns the change with these events and these new fields of the row."""
        row = self.row
        spec = row.spec
        sequence, at = row.last_sequence, row.last_event_at
        events = []
        for body in bodies:
            sequence += 1
            at = next_moment(self.now, at)
            events.append(
                Event(
                    entity_type=body.ENTITY,
                    entity_id=spec.id,
                    tenant=spec.tenant,
                    app=spec.app,
                    sequence=sequence,
                    at=at,
                    body=body,
                    context=self.context,
                )
            )
        fields["version"] = row.version + 1
        fields["change_id"] = self.change_id
        fields["updated_at"] = self.now
        fields["last_sequence"] = sequence
        fields["last_event_at"] = at
        return Change(
            row=copy_with(row, fields),
            expected_version=row.version,
            events=tuple(events),
            effects=effects,
            durable=durable,
        )


TaskChange = Change[TaskRow]
TaskDecision = TaskChange | Refusal


class TaskTransition(Transition[TaskRow]):
    """Builds the change of a task."""

    __slots__ = ()

    @property
    def ids(self) -> dict[str, Any]:
        """The ids that every event of a task has."""
        return {"task_id": self.row.spec.id, "job_id": self.row.spec.job_id}

    def pending(self, *bodies: EventBody, at: datetime, **fields: Any) -> TaskChange:
        """Returns the change of a task that may run at this time, with its message."""
        spec = self.row.spec
        return self.change(
            *bodies,
            effects=(Enqueue(spec.id, spec.queue, spec.priority, at),),
            state=TaskState.PENDING,
            due_at=at,
            enqueued_at=self.now,
            **fields,
        )

    @property
    def lease(self) -> Lease:
        """The lease; only for commands whose fence was checked."""
        return cast("Lease", self.row.lease)

    def check_fence(self, fence: int) -> Refusal | None:
        """Returns the refusal of a stale writer; None if the fence is the current one."""
        lease = self.row.lease
        if lease is not None and lease.fence == fence:
            return None
        holder = f"held by fence {lease.fence}" if lease else f"the task is {self.row.state}"
        return Refusal(RefusalReason.LEASE_LOST, f"fence {fence} is not current: {holder}")

    def wrong_state(self, expected: str) -> Refusal:
        reason = RefusalReason.ENDED if self.row.state.terminal else RefusalReason.WRONG_STATE
        return Refusal(reason, f"the task is {self.row.state}, not {expected}")


def make_pending(step: TaskTransition, **fields: Any) -> TaskChange:
    spec = step.row.spec
    due_at = max(step.now, spec.not_before or step.now)
    pending = e.TaskPending(
        **step.ids,
        name=spec.definition,
        depends_on=spec.parents,
        round=fields.get("round", step.row.round),
        due_at=due_at if due_at > step.now else None,
    )
    return step.pending(pending, at=due_at, awaits=NO_NUMBERS, **fields)


def cancel_task(
    step: TaskTransition,
    request: CancelRequest,
    *,
    usage: e.Usage | None = None,
    last_output: int | None = None,
) -> TaskChange:
    row = step.row
    cancelled = e.TaskCancelled(
        **step.ids,
        by=request.by,
        reason=request.reason,
        attempt_number=row.attempt if row.lease else None,
        last_output=last_output,
        usage=usage,
    )
    return step.change(
        cancelled,
        state=TaskState.CANCELLED,
        lease=None,
        cancel=request,
        parked=None,
        due_at=None,
        enqueued_at=None,
        finished_at=step.now,
        last_output=last_output if row.lease else row.last_output,
        usage=row.usage + usage if usage else row.usage,
    )
