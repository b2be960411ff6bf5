"""The rows of a data folder as evidence.

Some of a row is kept a second time in columns of its own, by which rows are found: these must say
the same.
"""

from __future__ import annotations

from typing import Any

from longshore.audit import vocabulary as v
from longshore.audit.json_documents import (
    ReadBlob,
    child_object,
    parse_event,
    parse_job,
    parse_object,
    parse_task,
    parse_us,
    task_id_in,
)
from longshore.audit.store_snapshot import EventRecord, JobRecord, TaskRecord

__all__ = ["event", "job", "task", "task_id_in"]

Mismatches = list[tuple[str, str]]

_NOT_COUNTED = -1  # in a column that is younger than its row


def task(row: tuple[Any, ...], mismatches: Mismatches, blob: ReadBlob) -> TaskRecord:
    """A row of the table of tasks."""
    task_id, tenant, job_id, number, queue, state, due, rung, lease_until, finished, version = row[
        :11
    ]
    spec, body = parse_object(row[11]), parse_object(row[12])
    found = parse_task(task_id, spec, body, blob)
    for name, column, kept in (
        ("id", task_id, spec.get("id")),
        ("tenant", tenant, found.tenant),
        ("job", job_id, found.job_id),
        ("number", number, found.number),
        ("queue", queue, found.queue),
        ("state", state, found.state),
        ("due time", due, found.due_us),
        ("last ring", rung, parse_us(body.get("enqueued_at"))),
        ("end of its lease", lease_until, found.lease.until_us if found.lease else None),
        ("end", finished, found.finished_us),
        ("version", version, found.version),
    ):
        if column != kept:
            mismatches.append(
                (task_id, f"it is found by {name} {column!r}, and its row says {kept!r}")
            )
    return found


def job(row: tuple[Any, ...], mismatches: Mismatches, blob: ReadBlob) -> JobRecord:
    """A row of the table of jobs."""
    job_id, tenant, state, open_intents, ended, untold, version, text = row
    body = parse_object(text)
    found = parse_job(job_id, body, blob)
    spec = child_object(body, "spec")
    columns = [
        ("id", job_id, spec.get("id")),
        ("tenant", tenant, found.tenant),
        ("number of intents", open_intents, len(found.intents)),
        ("version", version, found.version),
    ]
    sets = (found.total, found.completed, found.failed, found.cancelled, found.blocked)
    if all(type(one) is int for one in sets):
        columns.append(("state", state, v.job_state(found)))
        if ended != _NOT_COUNTED:
            over = found.completed | found.failed | found.cancelled
            columns.append(("number of ends", ended, over.bit_count()))
            columns.append(("untold end", untold, int(v.end_event_missing(found))))
    for name, column, kept in columns:
        if column != kept:
            mismatches.append(
                (job_id, f"it is found by {name} {column!r}, and its row says {kept!r}")
            )
    return found


def event(row: tuple[Any, ...]) -> EventRecord:
    """A row of the table of events."""
    position, entity, tenant, sequence, type_, at_ms, origin, text = row
    properties = parse_object(text)
    return parse_event(position, entity, tenant, sequence, type_, at_ms, origin, properties)
