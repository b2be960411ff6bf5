"""Snapshots of a job for `why`, and the reasons derived from them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from longshore.core.explain import (
    ChainLink,
    DependencyChain,
    Remedy,
    RemedyAction,
    WhyReason,
    WhySnapshot,
    explain_task,
)
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from tests.factories import JOB_ID, NOON, SECOND, a_job, a_spec, a_task

A = f"{JOB_ID}_a"
LATER = NOON + 10 * SECOND
RESUME = Remedy(RemedyAction.RESUME_JOB, JOB_ID)
ALONE = DependencyChain(links=(ChainLink(number=0),))


@dataclass
class Pause:
    name: str = "default"
    by: str = "olga"
    reason: str | None = None
    at: datetime = NOON
    until: datetime | None = None


def make_snapshot(*rows: TaskRow, job: JobRow | None = None, **fields: Any) -> WhySnapshot:
    expected: dict[str, Any] = {
        "now": LATER,
        "job": job or a_job(5),
        "lease_policy": LeasePolicy(),
        "rows": {row.spec.number: row for row in rows},
        "keys": dict(enumerate("abcde")),
        "live_workers": {"worker-1": ("default",)},
        "pauses": (),
        **fields,
    }
    return WhySnapshot(**expected)


def reasons_of(row: TaskRow, **fields: Any) -> list[WhyReason]:
    """Returns the reasons of a task that waits for no other task."""
    return explain_task(make_snapshot(row, **fields), ALONE)


def single_reason(row: TaskRow, **fields: Any) -> WhyReason:
    (reason,) = reasons_of(row, **fields)
    return reason


def row_of(key: str, state: TaskState, **fields: Any) -> TaskRow:
    return a_task(state=state, spec=a_spec(key, number="abcde".index(key)), **fields)
