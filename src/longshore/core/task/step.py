"""One decision being made: how a change of a task is written down."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from longshore.core.changes import Change, Effect, Reason, Refusal, Ring
from longshore.core.events import types as e
from longshore.core.events.event import Context, Event, next_moment
from longshore.core.evolving import evolved
from longshore.core.lease import Lease
from longshore.core.numbers import NO_NUMBERS
from longshore.core.rows import CancelRequest, TaskRow
from longshore.core.states import TaskState

TaskChange = Change[TaskRow]
Decision = TaskChange | Refusal


class Step:
    """The row, the time, and who caused what."""

    __slots__ = ("change_id", "context", "now", "row")

    def __init__(self, row: TaskRow, now: datetime, change_id: str, context: Context) -> None:
        self.row = row
        self.now = now
        self.change_id = change_id
        self.context = context

    def change(
        self,
        *bodies: e.EventBody,
        effects: tuple[Effect, ...] = (),
        promised: bool = True,
        **fields: Any,
    ) -> TaskChange:
        row = self.row
        spec = row.spec
        sequence, at = row.last_sequence, row.last_event_at
        events = []
        for body in bodies:
            sequence += 1
            at = next_moment(self.now, at)
            events.append(
                Event(
                    entity_type=e.EntityType.TASK,
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
        changed = evolved(row, fields)
        return Change(
            row=changed,
            expected_version=row.version,
            events=tuple(events),
            effects=effects,
            promised=promised,
        )

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
        due_at=None,
        rung_at=None,
        finished_at=step.now,
        last_output=last_output if row.lease else row.last_output,
        usage=row.usage + usage if usage else row.usage,
    )
