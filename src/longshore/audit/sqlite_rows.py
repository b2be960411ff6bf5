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
    task_id, tenant, job_id, number, queue, state, due, enqueued, lease_until, finished, version = (
        row[:11]
    )
    spec, body = parse_object(row[11]), parse_object(row[12])
    record = parse_task(task_id, spec, body, blob)
    for name, column, stored in (
        ("id", task_id, spec.get("id")),
        ("tenant", tenant, record.tenant),
        ("job", job_id, record.job_id),
        ("number", number, record.number),
        ("queue", queue, record.queue),
        ("state", state, record.state),
        ("due time", due, record.due_us),
        ("last message", enqueued, parse_us(body.get("enqueued_at"))),
        ("end of its lease", lease_until, record.lease.until_us if record.lease else None),
        ("end", finished, record.finished_us),
        ("version", version, record.version),
    ):
        if column != stored:
            mismatches.append(
                (task_id, f"it is found by {name} {column!r}, but its row says {stored!r}")
            )
    return record


def job(row: tuple[Any, ...], mismatches: Mismatches, blob: ReadBlob) -> JobRecord:
    """A row of the table of jobs."""
    job_id, tenant, state, open_intents, ended, unreported, version, text = row
    body = parse_object(text)
    record = parse_job(job_id, body, blob)
    spec = child_object(body, "spec")
    columns = [
        ("id", job_id, spec.get("id")),
        ("tenant", tenant, record.tenant),
        ("number of intents", open_intents, len(record.intents)),
        ("version", version, record.version),
    ]
    sets = (record.total, record.completed, record.failed, record.cancelled, record.blocked)
    if all(type(number) is int for number in sets):
        columns.append(("state", state, v.job_state(record)))
        if ended != _NOT_COUNTED:
            over = record.completed | record.failed | record.cancelled
            columns.append(("number of ends", ended, over.bit_count()))
            columns.append(("unreported end", unreported, int(v.end_event_missing(record))))
    for name, column, stored in columns:
        if column != stored:
            mismatches.append(
                (job_id, f"it is found by {name} {column!r}, but its row says {stored!r}")
            )
    return record


def event(row: tuple[Any, ...]) -> EventRecord:
    """A row of the table of events."""
    position, entity, tenant, sequence, type_, at_ms, origin, text = row
    properties = parse_object(text)
    return parse_event(position, entity, tenant, sequence, type_, at_ms, origin, properties)
