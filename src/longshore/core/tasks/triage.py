"""What to do with a message that has just arrived, decided from the row it points to.

A message says "look at this task" and nothing more, so it may arrive twice, late, or for a task
that has long ended. A skip is not an attempt: it must never push a healthy task towards its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import assert_never

from longshore.core.tasks.lease import is_over
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState


class MessageAction(Enum):
    """What to do with the message."""

    RUN = "claim the task and run it"
    TAKE_OVER = "end the silent holder's lease, then look again"
    DELAY = "delay the message until a time"
    DROP = "nothing is left to do: delete the message"
    REJECT = "there is no such task: log it and delete the message"


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageDecision:
    """An action, and for ``DELAY`` the time."""

    action: MessageAction
    until: datetime | None = None


def triage(
    row: TaskRow | None, *, now: datetime, margin: timedelta, holder_dead: bool = False
) -> TriageDecision:
    """Decide from the row alone; the caller acts.

    ``holder_dead`` means that the process of the lease holder has ended.
    """
    if row is None:
        return TriageDecision(action=MessageAction.REJECT)
    match row.state:
        case TaskState.PENDING:
            if row.due_at is not None and now < row.due_at:
                return TriageDecision(action=MessageAction.DELAY, until=row.due_at)
            return TriageDecision(action=MessageAction.RUN)
        case TaskState.PROCESSING:
            return _triage_leased(row, now, margin, holder_dead=holder_dead)
        case (
            TaskState.COMPLETED
            | TaskState.FAILED
            | TaskState.CANCELLED
            | TaskState.WAITING
            | TaskState.IN_REVIEW
            | TaskState.PARKED
        ):
            # Waiting, in review, parked: the task is enqueued when it becomes pending.
            return TriageDecision(action=MessageAction.DROP)
        case _:
            assert_never(row.state)


def _triage_leased(
    row: TaskRow, now: datetime, margin: timedelta, *, holder_dead: bool
) -> TriageDecision:
    lease = row.lease
    if lease is None or (holder_dead and lease.local) or is_over(lease, now=now, margin=margin):
        return TriageDecision(action=MessageAction.TAKE_OVER)
    return TriageDecision(action=MessageAction.DELAY, until=lease.expires_at + margin)
