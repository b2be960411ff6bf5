"""The life of a task: ``apply(row, command) -> Change | Refusal``, and nothing else.

::

    waiting ─► pending ─► processing ─► completed
       ▲         ▲  ▲         │   │
       │         │  └─────────┘   ├──► in_review ─► completed
       │         │  failed, gone, │        │
       │         │  released      │        └──► pending (revision)
       │         │                └──► parked ─► pending (more is allowed)
       └─ resume ┴─── failed, cancelled

Pure: the time, the chance in a backoff and the change's id come in. Everything that may be told
about a task is decided here, so the rules of leases, rounds and attempts stand in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any

from longshore.core import commands as c
from longshore.core.events.event import Context, to_tick
from longshore.core.numbers import NumberSet
from longshore.core.rows import TaskRow, TaskSpec
from longshore.core.states import TaskState
from longshore.core.task import attempts, parking, wishes
from longshore.core.task.step import Decision, Step, TaskChange, make_pending


def create(spec: TaskSpec, awaits: NumberSet, *, now: datetime, change_id: str) -> TaskChange:
    """A new task: pending at once if it awaits nobody, else waiting and silent."""
    now = to_tick(now)
    unborn = TaskRow(spec=spec, state=TaskState.WAITING, version=0, change_id="", updated_at=now)
    step = Step(unborn, now, change_id, Context(origin="producer", source="user"))
    if awaits:
        return step.change(awaits=awaits)
    return make_pending(step)


def apply(row: TaskRow, command: c.Command, *, now: datetime, change_id: str) -> Decision:
    """What comes of a command, decided from the row alone."""
    decide, origin, source = _RULES[type(command)]
    worker_id = None
    if origin == "worker":
        holder = command if isinstance(command, c.Claim) else row.lease
        worker_id = holder.worker_id if holder else None
    context = _context(origin, source, worker_id)
    return decide(Step(row, to_tick(now), change_id, context), command)


@lru_cache(maxsize=1024)
def _context(origin: str, source: str, worker_id: str | None) -> Context:
    """Who causes events: always the same few, so they are made once."""
    return Context(origin=origin, source=source, worker_id=worker_id)


_Rule = tuple[Callable[[Step, Any], Decision], str, str]

_RULES: dict[type, _Rule] = {
    c.ParentsDone: (wishes.parents_done, "dispatcher", "system"),
    c.Claim: (attempts.claim, "worker", "system"),
    c.Renew: (attempts.renew, "worker", "system"),
    c.SaveCheckpoint: (attempts.save_checkpoint, "worker", "system"),
    c.Release: (attempts.release, "worker", "system"),
    c.Park: (parking.park, "worker", "system"),
    c.AttemptFailed: (attempts.attempt_failed, "worker", "system"),
    c.Complete: (attempts.complete, "worker", "system"),
    c.TimeOut: (attempts.time_out, "worker", "system"),
    c.LeaseEnded: (attempts.lease_ended, "sweeper", "system"),
    c.FailTask: (attempts.fail_task, "sweeper", "system"),
    c.RequestCancel: (wishes.request_cancel, "operator", "user"),
    c.ConfirmCancel: (wishes.confirm_cancel, "worker", "system"),
    c.RequestRevision: (wishes.request_revision, "operator", "user"),
    c.Approve: (wishes.approve, "operator", "user"),
    c.Resume: (wishes.resume, "operator", "user"),
    c.Unpark: (parking.unpark, "operator", "user"),
    c.AddBudget: (parking.add_budget, "operator", "user"),
    c.RingAgain: (wishes.ring_again, "sweeper", "system"),
}
