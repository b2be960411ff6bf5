"""What to do with a message that has just arrived, decided from the row it points to.

A message says "look at this task" and nothing more, so it may come twice, late, or for a task that
has long ended. A skip is not an attempt: it must never push a healthy task towards its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import assert_never

from longshore.core.lease import over
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState


class Verdict(Enum):
    """What to do with the message."""

    RUN = "claim the task and run it"
    TAKE_OVER = "end the silent holder's lease, then look again"
    LATER = "put the message off until a moment"
    DROP = "nothing is left to do: delete the message"
    UNKNOWN = "there is no such task: tell somebody and delete the message"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, and for ``LATER`` the moment to look again."""

    verdict: Verdict
    until: datetime | None = None


def judge(
    row: TaskRow | None, *, now: datetime, margin: timedelta, holder_gone: bool = False
) -> Judgement:
    """Decide from the row alone; the caller acts.

    ``holder_gone`` is evidence that the process which holds the lease no longer exists.
    """
    if row is None:
        return Judgement(verdict=Verdict.UNKNOWN)
    match row.state:
        case TaskState.PENDING:
            if row.due_at is not None and now < row.due_at:
                return Judgement(verdict=Verdict.LATER, until=row.due_at)
            return Judgement(verdict=Verdict.RUN)
        case TaskState.PROCESSING:
            return _judge_held(row, now, margin, holder_gone=holder_gone)
        case (
            TaskState.COMPLETED
            | TaskState.FAILED
            | TaskState.CANCELLED
            | TaskState.WAITING
            | TaskState.IN_REVIEW
            | TaskState.PARKED
        ):
            # Waiting, in review, parked: whoever makes the task pending rings for it then.
            return Judgement(verdict=Verdict.DROP)
        case _:
            assert_never(row.state)


def _judge_held(row: TaskRow, now: datetime, margin: timedelta, *, holder_gone: bool) -> Judgement:
    lease = row.lease
    if lease is None or (holder_gone and lease.local) or over(lease, now=now, margin=margin):
        return Judgement(verdict=Verdict.TAKE_OVER)
    return Judgement(verdict=Verdict.LATER, until=lease.expires_at + margin)
