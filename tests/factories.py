"""Rows and their parts for tests: a test passes what matters, the rest is filled in to fit.

A task that is processing has a lease, a terminal task has a finish time, a job whose tasks have all
completed has emitted its final event. A test that needs an impossible row sets its fields.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from longshore.core.budgets import BudgetScope, BudgetUnit
from longshore.core.documents import Document
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.jobs.numbers import NO_NUMBERS, NumberSet
from longshore.core.tasks.changes import Change, Refusal
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.lease import Lease
from longshore.core.tasks.rows import (
    CancelRequest,
    Intent,
    IntentKind,
    JobRow,
    JobSpec,
    ParkRecord,
    TaskRow,
    TaskSpec,
)
from longshore.core.tasks.states import JobState, TaskState

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
LASTS = timedelta(seconds=45)
MARGIN = timedelta(seconds=2)
TENANT = "acme"
APP = "shop"
JOB_ID = job_id_of(TENANT, "request-1")

RowT = TypeVar("RowT", TaskRow, JobRow)


def changed(decision: Change[RowT] | Refusal) -> Change[RowT]:
    """The change; a refusal fails the test."""
    assert isinstance(decision, Change), decision
    return decision


def refused(decision: Change[RowT] | Refusal) -> Refusal:
    """The refusal; a change fails the test."""
    assert isinstance(decision, Refusal), decision
    return decision


def a_document(text: str = '{"answer":42}') -> Document:
    return Document(text=text, size=len(text.encode()))


def a_failure(category: ErrorCategory = ErrorCategory.NETWORK, **fields: Any) -> Failure:
    return Failure(category=category, message=f"broke by {category.value}", **fields)


def a_cancel_request() -> CancelRequest:
    return CancelRequest(by="ann", reason="not needed", at=NOON)


def a_parking(scope: BudgetScope = BudgetScope.TASK) -> ParkRecord:
    return ParkRecord(scope=scope, unit=BudgetUnit.USD, reason="all is spent", at=NOON)


def a_spec(key: str = "a", *, number: int = 0, job_id: str = JOB_ID, **fields: Any) -> TaskSpec:
    values = {
        "tenant": TENANT,
        "app": APP,
        "definition": "command",
        "definition_version": 1,
        "created_at": NOON,
        **fields,
    }
    return TaskSpec(id=task_id_of(job_id, key), job_id=job_id, key=key, number=number, **values)


def a_lease(
    *,
    fence: int = 1,
    worker_id: str = "worker-1",
    acquired_at: datetime = NOON,
    lasts: timedelta = LASTS,
    local: bool = True,
) -> Lease:
    return Lease(
        worker_id=worker_id,
        fence=fence,
        claim_id=f"claim-{fence}",
        acquired_at=acquired_at,
        expires_at=acquired_at + lasts,
        local=local,
    )


def a_task(
    *,
    state: TaskState = TaskState.PENDING,
    attempt: int | None = None,
    lease: Lease | None = None,
    spec: TaskSpec | None = None,
    **fields: Any,
) -> TaskRow:
    """A task in this state, last changed at noon; ``fields`` are those of the row."""
    if attempt is None:
        attempt = 0 if state in (TaskState.WAITING, TaskState.PENDING) else 1
    if state is TaskState.PROCESSING and lease is None:
        lease = a_lease(fence=attempt)
    events = 0 if state is TaskState.WAITING else 2 * attempt + 1
    values = {
        "version": events + 1,
        "change_id": f"change-{events + 1}",
        "updated_at": NOON,
        "fence": lease.fence if lease else attempt,
        "started_at": NOON if attempt else None,
        "last_sequence": events,
        "last_event_at": NOON if events else None,
        **_fields_in(state),
        **fields,
    }
    return TaskRow(spec=spec or a_spec(), state=state, attempt=attempt, lease=lease, **values)


def _fields_in(state: TaskState) -> dict[str, Any]:
    match state:
        case TaskState.WAITING:
            return {"awaits": NumberSet([1])}
        case TaskState.PENDING:
            return {"due_at": NOON, "enqueued_at": NOON}
        case TaskState.IN_REVIEW:
            return {"result": a_document(), "exit_code": 0, "ran_for": SECOND}
        case TaskState.PARKED:
            return {"parked": a_parking(), "ran_for": SECOND}
        case TaskState.COMPLETED:
            ended = {"finished_at": NOON, "ran_for": SECOND}
            return {"result": a_document(), "exit_code": 0, **ended}
        case TaskState.FAILED:
            ended = {"finished_at": NOON, "ran_for": SECOND}
            return {"failure": a_failure(), "attempts_used": 1, **ended}
        case TaskState.CANCELLED:
            return {"cancel": a_cancel_request(), "finished_at": NOON}
        case TaskState.PROCESSING:
            return {}


def a_job_spec(request_id: str = "request-1", **fields: Any) -> JobSpec:
    values = {"tenant": TENANT, "app": APP, "body_hash": "0" * 64, "created_at": NOON, **fields}
    job_id = job_id_of(values["tenant"], request_id)
    return JobSpec(id=job_id, request_id=request_id, **values)


def a_job(
    total: int = 3,
    *,
    completed: Iterable[int] = (),
    failed: Iterable[int] = (),
    cancelled: Iterable[int] = (),
    blocked: Iterable[int] = (),
    **fields: Any,
) -> JobRow:
    """A job with ``total`` tasks whose row includes these outcomes and their events."""
    fields_so_far: dict[str, Any] = {
        "completed": NumberSet(completed),
        "failed": NumberSet(failed),
        "cancelled": NumberSet(cancelled),
        "blocked": NumberSet(blocked),
        "spec": a_job_spec(),
        "version": 1,
        "change_id": "change-1",
        "updated_at": NOON,
        "graph": a_document("{}"),
        "last_sequence": 1,
        "last_event_at": NOON,
        **fields,
    }
    row = JobRow(total=total, **fields_so_far)
    ended = row.state in (JobState.COMPLETED, JobState.CANCELLED)
    emitted: dict[str, Any] = {
        "finished_at": NOON if row.state.terminal else None,
        "failure_emitted_round": row.round if row.failed else 0,
        "end_emitted_round": row.round if ended else 0,
        **fields,
    }
    return replace(row, **emitted)


def an_intent(
    kind: IntentKind = IntentKind.RESUME,
    *,
    id: str = "intent-1",
    numbers: NumberSet = NO_NUMBERS,
    round: int = 2,
) -> Intent:
    return Intent(id=id, kind=kind, numbers=numbers, round=round, by="ann")
