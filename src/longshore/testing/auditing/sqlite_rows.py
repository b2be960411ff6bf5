"""The rows of a data folder as evidence.

Some of a row is kept a second time in columns of its own, by which rows are found: these must say
the same.
"""

from __future__ import annotations

from typing import Any

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.evidence import Event, Job, Task
from longshore.testing.auditing.json_rows import (
    Blob,
    event_in,
    job_in,
    named_in,
    object_in,
    part_of,
    task_in,
    us_of,
)

__all__ = ["event", "job", "named_in", "task"]

Unlike = list[tuple[str, str]]

_NOT_COUNTED = -1  # in a column that is younger than its row


def task(row: tuple[Any, ...], unlike: Unlike, blob: Blob) -> Task:
    """A row of the table of tasks."""
    task_id, tenant, job_id, number, queue, state, due, rung, lease_until, finished, version = row[
        :11
    ]
    spec, body = object_in(row[11]), object_in(row[12])
    found = task_in(task_id, spec, body, blob)
    for name, column, kept in (
        ("id", task_id, spec.get("id")),
        ("tenant", tenant, found.tenant),
        ("job", job_id, found.job_id),
        ("number", number, found.number),
        ("queue", queue, found.queue),
        ("state", state, found.state),
        ("due time", due, found.due_us),
        ("last ring", rung, us_of(body.get("rung_at"))),
        ("end of its lease", lease_until, found.lease.until_us if found.lease else None),
        ("end", finished, found.finished_us),
        ("version", version, found.version),
    ):
        if column != kept:
            unlike.append((task_id, f"it is found by {name} {column!r}, and its row says {kept!r}"))
    return found


def job(row: tuple[Any, ...], unlike: Unlike, blob: Blob) -> Job:
    """A row of the table of jobs."""
    job_id, tenant, state, open_intents, ended, untold, version, text = row
    body = object_in(text)
    found = job_in(job_id, body, blob)
    spec = part_of(body, "spec")
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
            columns.append(("untold end", untold, int(v.untold(found))))
    for name, column, kept in columns:
        if column != kept:
            unlike.append((job_id, f"it is found by {name} {column!r}, and its row says {kept!r}"))
    return found


def event(row: tuple[Any, ...]) -> Event:
    """A row of the table of events."""
    position, entity, tenant, sequence, type_, at_ms, origin, text = row
    properties = object_in(text)
    return event_in(position, entity, tenant, sequence, type_, at_ms, origin, properties)
