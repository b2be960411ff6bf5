"""What was read of a job, and what is told of it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.chain import Chain, Link
from longshore.core.explaining import why_task
from longshore.core.lease import LeasePolicy
from longshore.core.reasons import Picture, Reason
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import TaskState
from tests.factories import JOB_ID, NOON, SECOND, a_job, a_spec, a_task

A = f"{JOB_ID}_a"
LATER = NOON + 10 * SECOND
RESUME = f"longshore resume {JOB_ID}"
ALONE = Chain(links=(Link(number=0),))


@dataclass
class Pause:
    name: str = "default"
    by: str = "olga"
    reason: str | None = None
    at: datetime = NOON
    until: datetime | None = None


def a_picture(*rows: TaskRow, job: JobRow | None = None, **fields: Any) -> Picture:
    wanted: dict[str, Any] = {
        "now": LATER,
        "job": job or a_job(5),
        "lease": LeasePolicy(),
        "rows": {row.spec.number: row for row in rows},
        "keys": dict(enumerate("abcde")),
        "present": {"worker-1": ("default",)},
        "paused": (),
        **fields,
    }
    return Picture(**wanted)


def reasons_of(row: TaskRow, **fields: Any) -> list[Reason]:
    """Why a task that stands behind no other one is where it is."""
    return why_task(a_picture(row, **fields), ALONE)


def one_of(row: TaskRow, **fields: Any) -> Reason:
    (reason,) = reasons_of(row, **fields)
    return reason


def row_of(key: str, state: TaskState, **fields: Any) -> TaskRow:
    return a_task(state=state, spec=a_spec(key, number="abcde".index(key)), **fields)
