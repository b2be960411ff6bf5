"""The rows and packed events of a data folder as evidence.

Columns hold the usual values in a short form, and ``rest`` is JSON with every other field. Events
are packed beside their row. All of it is decoded here without the store's own code, from the format
that ``docs/explain/store.md`` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from longshore.audit.json_documents import (
    ReadBlob,
    parse_event,
    parse_job,
    parse_object,
    parse_task,
)
from longshore.audit.store_snapshot import EventRecord, JobRecord, TaskRecord

Row = Mapping[str, Any]
PackedEvent = tuple[int, int, int, Any, Any]
FeedEntry = tuple[Any, Any, int, Any]
"""The type, the tenant, the entity and the sequence of an event in the feed."""

NUMBER_BITS = 20
_TASK_STATES = (
    *("waiting", "pending", "processing", "in_review", "parked", "completed", "failed"),
    "cancelled",
)
_JOB_STATES = ("running", "completed", "failed", "cancelled")
_EVENTS = (
    *("Task Pending", "Task Waiting", "Task Processing Started", "Task Heartbeat"),
    *("Task Processing Failed", "Task Released", "Task Parked", "Task Unparked"),
    *("Task Budget Added", "Task Completed", "Task Failed", "Task Timeout", "Task Cancelled"),
    *("Task Submitted For Review", "Task Revision Requested", "Task Approved", "Job Created"),
    *("Job Tasks Added", "Job Completed", "Job Failure Detected", "Job Cancelled", "Job Resumed"),
    *("Job Budget Added", "Message Rejected", "Task Health Check", "Operator Acted"),
)
_ORIGINS = ("producer", "dispatcher", "sweeper", "operator", "worker", "health-check", "system")
_DIGITS = "0123456789abcdefghijklmnopqrstuv"
_ID_LENGTH = 24
_LONG = 255
_MOST_TASKS = 1 << NUMBER_BITS
_unpack = msgspec.msgpack.Decoder().decode


def id_text(value: Any, prefix: str) -> Any:
    """The text of an id, which is stored as 15 bytes or as a text."""
    if not isinstance(value, bytes):
        return value
    number = int.from_bytes(value, "big")
    digits = [_DIGITS[number >> shift & 31] for shift in range(5 * (_ID_LENGTH - 1), -1, -5)]
    return prefix + "".join(digits)


def _numbers(value: Any) -> str:
    return f"{int.from_bytes(value, 'little'):x}" if isinstance(value, bytes) else ""


def _document(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, bytes):
        size, _, key = value.decode(errors="replace").partition(":")
        return {"key": key, "size": size}
    return {"text": value}


def _us(ms: Any) -> Any:
    return ms * 1000 if type(ms) is int else ms


def _state(names: tuple[str, ...], number: Any) -> Any:
    return names[number] if type(number) is int and 0 <= number < len(names) else number


def task(row: Row, name: Callable[[int], str], blob: ReadBlob) -> TaskRecord:
    """A row of the table of tasks, with ``job`` (the id of its job) and ``kind`` (a document)."""
    job_id, kind = id_text(row["job"], "job-"), parse_object(row["kind"])
    rest = parse_object(row["rest"])
    spec = {
        "tenant": name(row["tenant"]),
        "job_id": job_id,
        "key": row["key"],
        "number": row["no"] & (1 << NUMBER_BITS) - 1,
        "queue": kind.get("queue"),
        "retry": kind.get("retry"),
        "not_before": rest.get("not_before"),
        "input": _document(row["input"]),
        "parents": _document(row["parents"]),
        "dependents": _document(row["dependents"]),
    }
    updated_us = _us(row["updated_ms"])
    lease = {}
    if row["lease_ms"] is not None:
        lease = {
            "worker_id": name(row["worker"]),
            "fence": row["fence"],
            "acquired_at": updated_us if row["started_ms"] is None else _us(row["started_ms"]),
            "expires_at": _us(row["lease_ms"]),
        }
    last_us = updated_us if row["event_ms"] is None else _us(row["event_ms"])
    body = {
        "state": _state(_TASK_STATES, row["state"]),
        "version": row["version"],
        "attempt": row["attempt"],
        "fence": row["fence"],
        "last_sequence": row["sequence"],
        "awaits": _numbers(row["awaits"]),
        "lease": lease,
        "due_at": row["due_us"],
        "started_at": _us(row["started_ms"]),
        "finished_at": _us(row["finished_ms"]),
        "last_event_at": last_us if row["sequence"] else None,
        "last_output": row["last_output"],
        "result": _document(row["result"]),
        **rest,
    }
    return parse_task(f"{job_id}_{row['key']}", spec, body, blob)


def task_mismatches(row: Row, record: TaskRecord, name: Callable[[int], str]) -> Iterator[str]:
    """What the columns by which a task is found say, if its row says something else."""
    kind = parse_object(row["kind"])
    columns = [
        ("queue", name(row["queue"]), record.queue),
        ("lane", row["lane"], kind.get("priority")),
        ("end of its lease", row["lease_ms"], _ms(record.lease and record.lease.until_us)),
        ("due time", row["due_us"], record.due_us),
    ]
    for what, column, stored in columns:
        if column != stored:
            yield f"it is found by {what} {column!r}, but its row says {stored!r}"


def _ms(us: Any) -> Any:
    return us // 1000 if type(us) is int else us


def job(row: Row, name: Callable[[int], str], blob: ReadBlob) -> JobRecord:
    """A row of the table of jobs, with ``only_task`` (key and kind of a job of one task)."""
    rest = parse_object(row["rest"])
    updated_us = _us(row["updated_ms"])
    last_us = updated_us if row["event_ms"] is None else _us(row["event_ms"])
    completed, state = row["completed"], _state(_JOB_STATES, row["state"])
    all_done = completed is None and state == "completed" and 0 <= row["total"] <= _MOST_TASKS
    graph = _document(row["graph"])
    if not graph:
        key, kind = row["only_task"] or (None, None)
        names = [parse_object(kind).get("definition")]
        graph = {"text": msgspec.json.encode({"keys": [key], "names": names, "parents": [[]]})}
    body = {
        "spec": {
            "tenant": name(row["tenant"]),
            "request_id": id_text(row["request_id"], "req-"),
        },
        "version": row["version"],
        "total": row["total"],
        "completed": f"{(1 << row['total']) - 1:x}" if all_done else _numbers(completed),
        "end_emitted_round": int(state == "completed"),
        "last_sequence": row["sequence"],
        "last_event_at": last_us if row["sequence"] else None,
        "finished_at": _us(row["finished_ms"]),
        "graph": graph,
        **rest,
    }
    return parse_job(id_text(row["id"], "job-"), body, blob)


def records_in(history: Any) -> tuple[list[PackedEvent], bool]:
    """The packed events of a history up to a damaged one, and whether there is one."""
    records: list[PackedEvent] = []
    start = 0
    try:
        while start < len(history):
            length, start = history[start], start + 1
            if length == _LONG:
                length, start = int.from_bytes(history[start : start + 4], "little"), start + 4
            type_, ms, position, context, properties = _unpack(history[start : start + length])
            if not all(type(number) is int for number in (type_, ms, position)):
                return records, True
            records.append((type_, ms, position, context, properties))
            start += length
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError):
        return records, True
    return records, False


def feed_numbers(data: Any) -> dict[FeedEntry, int]:
    """The number of each event in a row of the feed; none if the row is damaged."""
    entries: list[FeedEntry] = []
    try:
        for type_, tenant, sequence, differences in _unpack(data):
            entity = 0
            for difference in differences:
                entity += difference
                entries.append((type_, tenant, entity, sequence))
        return {entry: number for number, entry in enumerate(entries)}
    except (msgspec.MsgspecError, ValueError, TypeError):
        return {}


def _origin(context: Any) -> Any:
    if type(context) is int:
        return "worker" if context > 0 else _state(_ORIGINS, -1 - context)
    return context[0] if isinstance(context, list) and context else None


def task_event(
    record: PackedEvent, row: Row, name: Callable[[int], str], sequence: int, position: int
) -> EventRecord:
    """A packed event of a task."""
    type_, ms, _, context, values = record
    job_id = id_text(row["job"], "job-")
    task_id, at_ms = f"{job_id}_{row['key']}", row["created_us"] // 1000 + ms
    kind = _state(_EVENTS, type_)
    properties = {
        "requestId": task_id,
        "jobId": job_id,
        **_properties(values, lambda: _task_values(kind, values, row, name, at_ms)),
    }
    tenant = name(row["tenant"])
    return parse_event(
        position, f"TASK#{task_id}", tenant, sequence, kind, at_ms, _origin(context), properties
    )


def _properties(values: Any, compact: Callable[[], dict[str, Any]]) -> Any:
    """What an event says; nothing if its values are damaged."""
    if isinstance(values, str):
        return parse_object(values)
    try:
        return compact()
    except (msgspec.MsgspecError, ValueError, TypeError, IndexError):
        return {}


def _task_values(
    kind: Any, values: Any, row: Row, name: Callable[[int], str], at_ms: int
) -> dict[str, Any]:
    """The properties of an event whose values are packed without what the row has."""
    if kind == "Task Pending":
        round_, due_ms = values
        parents = _event_document(row["parents"])
        return {
            "name": parse_object(row["kind"]).get("definition"),
            "dependsOn": [] if parents is None else parents,
            "round": round_,
            **({} if due_ms is None else {"dueAt": due_ms}),
        }
    if kind == "Task Processing Started":
        worker, late_ms, lease_ms, process_id, attempt, fence = values
        return {
            "startedAt": at_ms - late_ms,
            "effectiveUntil": at_ms - late_ms + lease_ms,
            "workerId": name(worker),
            "processId": process_id,
            "attemptNumber": attempt,
            "fence": fence,
        }
    if kind == "Task Completed":
        attempt, duration_ms, exit_code, last_output, _usage = values
        return {
            "attemptNumber": attempt,
            "output": _event_document(row["result"]),
            "durationMs": duration_ms,
            "exitCode": exit_code,
            **({} if last_output is None else {"lastOutput": last_output}),
        }
    return {}


def _event_document(value: Any) -> Any:
    document = _document(value)
    if document.get("key") is not None:
        return {"_ref": document}
    text = document.get("text")
    if text is None:
        return None
    parsed = msgspec.json.decode(text)
    if isinstance(parsed, dict) and len(parsed) == 1 and set(parsed) <= {"_ref", "_literal"}:
        return {"_literal": parsed}
    return parsed


def job_event(
    record: PackedEvent,
    row: Row,
    name: Callable[[int], str],
    sequence: int,
    position: int,
    *,
    keys: Callable[[int], list[str]],
) -> EventRecord:
    """A packed event of a job; ``keys`` returns the keys of its first tasks."""
    type_, ms, _, context, values = record
    job_id = id_text(row["id"], "job-")
    at_ms, kind = row["created_us"] // 1000 + ms, _state(_EVENTS, type_)
    properties = {
        "jobId": job_id,
        **_properties(values, lambda: _job_values(kind, values, row, keys)),
    }
    tenant = name(row["tenant"])
    return parse_event(
        position, f"JOB#{job_id}", tenant, sequence, kind, at_ms, _origin(context), properties
    )


def _job_values(
    kind: Any, values: Any, row: Row, keys: Callable[[int], list[str]]
) -> dict[str, Any]:
    """The properties of an event whose values are packed without what the rows have."""
    if kind == "Job Created":
        (total,) = values
        return {
            "requestId": id_text(row["request_id"], "req-"),
            "tasks": [{"taskId": key} for key in keys(total)],
            "totalTasks": total,
        }
    if kind == "Job Completed":
        total, round_ = values
        return {
            "totalTasks": total,
            "taskStatuses": dict.fromkeys(keys(total), "completed"),
            "round": round_,
        }
    return {}


def event(row: Row, name: Callable[[int], str]) -> EventRecord:
    """A row of the table of other events."""
    return parse_event(
        row["position"] << NUMBER_BITS,
        row["entity"],
        name(row["tenant"]),
        row["sequence"],
        _state(_EVENTS, row["type"]),
        row["at_ms"],
        row["origin"],
        parse_object(row["properties"]),
    )


def job_mismatches(row: Row, record: JobRecord, state: Any, unreported: int) -> Iterator[str]:
    """What the columns by which a job is found say, if its row says something else."""
    for what, column, stored in (
        ("number of intents", row["intents"], len(record.intents)),
        ("state", _state(_JOB_STATES, row["state"]), state),
        ("unreported end", row["unreported"], unreported),
    ):
        if column != stored:
            yield f"it is found by {what} {column!r}, but its row says {stored!r}"
