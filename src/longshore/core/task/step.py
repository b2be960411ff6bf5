"""What decisions about tasks share: doorbells, who holds the lease, how a task begins and ends."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from longshore.core import stepping
from longshore.core.changes import Change, Reason, Refusal, Ring
from longshore.core.events import types as e
from longshore.core.lease import Lease
from longshore.core.numbers import NO_NUMBERS
from longshore.core.rows import CancelRequest, TaskRow
from longshore.core.states import TaskState

TaskChange = Change[TaskRow]
Decision = TaskChange | Refusal


class Step(stepping.Step[TaskRow]):
    """What decisions about tasks have in common."""

    __slots__ = ()

    def ring(self, at: datetime) -> Ring:
        spec = self.row.spec
        return Ring(spec.id, spec.queue, spec.priority, at)

    def held(self, fence: int) -> Lease | Refusal:
        """The lease, if this is its fence; a stale writer gets a refusal."""
        lease = self.row.lease
        if lease is not None and lease.fence == fence:
            return lease
        held = f"fence {lease.fence}" if lease else f"nobody, and the task is {self.row.state}"
        return Refusal(
            reason=Reason.LEASE_LOST, detail=f"fence {fence} is not current: held by {held}"
        )

    def wrong_state(self, wanted: str) -> Refusal:
        reason = Reason.ENDED if self.row.state.terminal else Reason.WRONG_STATE
        return Refusal(reason=reason, detail=f"the task is {self.row.state}, not {wanted}")


def make_pending(step: Step, **fields: Any) -> TaskChange:
    spec = step.row.spec
    due_at = max(step.now, spec.not_before or step.now)
    pending = e.TaskPending(
        task_id=spec.id,
        job_id=spec.job_id,
        name=spec.definition,
        depends_on=spec.parents,
        round=fields.get("round", step.row.round),
        due_at=due_at if due_at > step.now else None,
    )
    fields.update(state=TaskState.PENDING, awaits=NO_NUMBERS, due_at=due_at, rung_at=step.now)
    return step.change(pending, effects=(step.ring(due_at),), **fields)


def cancelled(
    step: Step,
    request: CancelRequest,
    *,
    usage: e.Usage | None = None,
    last_output: int | None = None,
) -> TaskChange:
    row = step.row
    cancelled = e.TaskCancelled(
        task_id=row.id,
        job_id=row.spec.job_id,
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
        rung_at=None,
        finished_at=step.now,
        last_output=last_output if row.lease else row.last_output,
        usage=row.usage + usage if usage else row.usage,
    )
