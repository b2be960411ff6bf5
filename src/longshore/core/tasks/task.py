"""The task aggregate: ``apply(row, command) -> Change | Refusal``, and nothing else.

::

    waiting ─► pending ─► processing ─► completed
       ▲         ▲  ▲         │   │
       │         │  └─────────┘   ├──► in_review ─► completed
       │         │  failed, gone, │        │
       │         │  released      │        └──► pending (revision)
       │         │                └──► parked ─► pending (budget raised)
       └─ resume ┴─── failed, cancelled

Pure: the time, the jitter of a backoff and the change's id are arguments. Every event of a task is
decided here, so the rules of leases, rounds and attempts are in one place. A command with a fence
is decided only if the fence is that of the current lease.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

from longshore.core.events.event import EventContext, to_tick
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks import attempts, operator
from longshore.core.tasks import commands as c
from longshore.core.tasks.changes import (
    TaskChange,
    TaskDecision,
    TaskTransition,
    cancel_task,
    make_pending,
)
from longshore.core.tasks.rows import TaskRow, TaskSpec
from longshore.core.tasks.states import TaskState

__all__ = ["TaskChange", "TaskDecision", "apply", "create"]


def create(spec: TaskSpec, awaits: NumberSet, *, now: datetime, change_id: str) -> TaskChange:
    """Returns a new task: pending if it awaits no parent, else waiting, without an event."""
    now = to_tick(now)
    row = TaskRow(spec=spec, state=TaskState.WAITING, version=0, change_id="", updated_at=now)
    step = TaskTransition(row, now, change_id, EventContext(origin="producer", source="user"))
    if awaits:
        return step.change(awaits=awaits)
    return make_pending(step)


def apply(row: TaskRow, command: c.Command, *, now: datetime, change_id: str) -> TaskDecision:
    """Decide a command from the row alone."""
    decide, origin, source = _RULES[type(command)]
    worker_id = None
    if origin == "worker":
        holder = command if isinstance(command, c.Claim) else row.lease
        worker_id = holder.worker_id if holder else None
    step = TaskTransition(row, to_tick(now), change_id, _context(origin, source, worker_id))
    if isinstance(command, c.FencedCommand) and (refusal := step.check_fence(command.fence)):
        return refusal
    if (
        isinstance(command, c.AttemptCommand)
        and row.cancel is not None
        # A result that needs no review completes the task although it was to be cancelled.
        and (row.spec.requires_review or not isinstance(command, c.Complete))
    ):
        return cancel_task(step, row.cancel, usage=command.usage, last_output=command.last_output)
    return decide(step, command)


@lru_cache(maxsize=1024)
def _context(origin: str, source: str, worker_id: str | None) -> EventContext:
    """Returns the context of events, cached: there are only a few."""
    return EventContext(origin=origin, source=source, worker_id=worker_id)


_Rule = tuple[Callable[[TaskTransition, Any], TaskDecision], str, str]

_RULES: dict[type, _Rule] = {
    c.ParentsCompleted: (operator.parents_completed, "dispatcher", "system"),
    c.Claim: (attempts.claim, "worker", "system"),
    c.Renew: (attempts.renew, "worker", "system"),
    c.SaveCheckpoint: (attempts.save_checkpoint, "worker", "system"),
    c.Release: (attempts.release, "worker", "system"),
    c.Park: (operator.park, "worker", "system"),
    c.AttemptFailed: (attempts.attempt_failed, "worker", "system"),
    c.Complete: (attempts.complete, "worker", "system"),
    c.TimeOut: (attempts.time_out, "worker", "system"),
    c.LeaseEnded: (attempts.lease_ended, "sweeper", "system"),
    c.FailTask: (attempts.fail_task, "sweeper", "system"),
    c.RequestCancel: (operator.request_cancel, "operator", "user"),
    c.ConfirmCancel: (operator.confirm_cancel, "worker", "system"),
    c.RequestRevision: (operator.request_revision, "operator", "user"),
    c.Approve: (operator.approve, "operator", "user"),
    c.Resume: (operator.resume, "operator", "user"),
    c.Unpark: (operator.unpark, "operator", "user"),
    c.AddBudget: (operator.add_budget, "operator", "user"),
    c.EnqueueAgain: (operator.enqueue_again, "sweeper", "system"),
}
