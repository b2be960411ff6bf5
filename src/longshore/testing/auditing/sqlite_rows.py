"""The rows of a data folder as evidence: what the JSON in its columns means.

Whatever is not as expected is handed on as it is, or as None, for the audit to judge. Some of a row
is kept a second time in columns of its own, by which rows are found: these must say the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.evidence import Event, Intent, Job, Lease, Plain, Task

Unlike = list[tuple[str, str]]
Blob = Callable[[str], bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NOT_COUNTED = -1  # in a column that is younger than its row
_OVERFLOW = "_s3Overflow"
_decode = msgspec.json.Decoder().decode


def _object(text: Any) -> Any:
    """A JSON object; one without anything in it if the text is none.

    Nothing is promised of what is in it: that is for the audit.
    """
    value = _value(text)
    return value if isinstance(value, dict) else {}


def _value(text: str | bytes | None) -> Any:
    try:
        return _decode(text or b"")
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        pass
    try:
        return json.loads(text or b"")  # what msgspec does not take, such as half a surrogate pair
    except (ValueError, TypeError):
        return None


def _us(moment: Any) -> Any:
    if not isinstance(moment, str):
        return moment
    try:
        return (datetime.fromisoformat(moment) - _EPOCH) // _MICROSECOND
    except (ValueError, TypeError):
        return moment


def _bits(text: Any) -> Any:
    try:
        return int(text or "0", 16)
    except (ValueError, TypeError):
        return text


def _part(of: dict[str, Any], name: str) -> Any:
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def _loaded(document: dict[str, Any], blob: Blob) -> Any:
    key = document.get("key")
    return _value(document.get("text") if key is None else blob(str(key)))


def _document(document: dict[str, Any]) -> str | None:
    """A document in a word: its JSON, or where it is kept."""
    if document.get("key") is not None:
        return f"{v.BLOB}{document['key']}"
    text = document.get("text")
    return None if text is None else _canonical(_value(text))


def _canonical(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _keys(*documents: dict[str, Any]) -> tuple[str, ...]:
    return tuple([one["key"] for one in documents if one.get("key") is not None])


def _listed(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else ()


def task(row: tuple[Any, ...], unlike: Unlike, blob: Blob) -> Task:
    """A row of the table of tasks."""
    task_id, tenant, job_id, number, queue, state, due, rung, lease_until, finished, version = row[
        :11
    ]
    spec, body = _object(row[11]), _object(row[12])
    lease, cancel, failure = _part(body, "lease"), _part(body, "cancel"), _part(body, "failure")
    result = _part(body, "result")
    parents = _part(spec, "parents")
    named = _keys(
        _part(spec, "input"),
        parents,
        _part(spec, "dependents"),
        result,
        _part(body, "previous_result"),
    )
    checkpoint = body.get("checkpoint")
    found = Task(
        id=task_id,
        tenant=spec.get("tenant"),
        job_id=spec.get("job_id"),
        key=spec.get("key"),
        number=spec.get("number"),
        queue=spec.get("queue"),
        state=body.get("state"),
        version=body.get("version"),
        round=body.get("round", 1),
        attempt=body.get("attempt", 0),
        attempts_used=body.get("attempts_used", 0),
        max_attempts=_part(spec, "retry").get("max_attempts"),
        fence=body.get("fence", 0),
        revision=body.get("revision", 0),
        last_sequence=body.get("last_sequence", 0),
        awaits=_bits(body.get("awaits")),
        lease=_lease(lease) if lease else None,
        not_before_us=_us(spec.get("not_before")),
        due_us=_us(body.get("due_at")),
        started_us=_us(body.get("started_at")),
        finished_us=_us(body.get("finished_at")),
        cancel_us=_us(cancel.get("at")),
        last_event_us=_us(body.get("last_event_at")),
        last_output=body.get("last_output"),
        result=_document(result),
        failure=failure.get("category"),
        parents=_listed(_loaded(parents, blob) if parents else []),
        blobs=named if checkpoint is None else (*named, checkpoint),
    )
    for name, column, kept in (
        ("id", task_id, spec.get("id")),
        ("tenant", tenant, found.tenant),
        ("job", job_id, found.job_id),
        ("number", number, found.number),
        ("queue", queue, found.queue),
        ("state", state, found.state),
        ("due time", due, found.due_us),
        ("last ring", rung, _us(body.get("rung_at"))),
        ("end of its lease", lease_until, found.lease.until_us if found.lease else None),
        ("end", finished, found.finished_us),
        ("version", version, found.version),
    ):
        if column != kept:
            unlike.append((task_id, f"it is found by {name} {column!r}, and its row says {kept!r}"))
    return found


def _lease(lease: Any) -> Lease:
    return Lease(
        worker_id=lease.get("worker_id"),
        fence=lease.get("fence"),
        since_us=_us(lease.get("acquired_at")),
        until_us=_us(lease.get("expires_at")),
        heartbeats=lease.get("heartbeats", 0),
    )


def job(row: tuple[Any, ...], unlike: Unlike, blob: Blob) -> Job:
    """A row of the table of jobs."""
    job_id, tenant, state, open_intents, ended, untold, version, text = row
    body = _object(text)
    spec, intents = _part(body, "spec"), _listed(body.get("intents") or [])
    graph = _loaded(_part(body, "graph"), blob)
    bodies = [_part(one, "body") for one in intents if isinstance(one, dict)]
    found = Job(
        id=job_id,
        tenant=spec.get("tenant"),
        request_id=spec.get("request_id"),
        version=body.get("version"),
        total=body.get("total"),
        round=body.get("round", 1),
        completed=_bits(body.get("completed")),
        failed=_bits(body.get("failed")),
        cancelled=_bits(body.get("cancelled")),
        blocked=_bits(body.get("blocked")),
        failure_told_in=body.get("failure_told_in", 0),
        end_told_in=body.get("end_told_in", 0),
        last_sequence=body.get("last_sequence", 0),
        last_event_us=_us(body.get("last_event_at")),
        cancel_us=_us(_part(body, "cancel").get("at")),
        finished_us=_us(body.get("finished_at")),
        intents=tuple([_intent(one) for one in intents]),
        keys=_listed(graph.get("keys")) if isinstance(graph, dict) else None,
        parents=_parents(graph) if isinstance(graph, dict) else (),
        blobs=_keys(_part(body, "graph"), *bodies),
    )
    columns = [
        ("id", job_id, spec.get("id")),
        ("tenant", tenant, found.tenant),
        ("number of intents", open_intents, len(intents)),
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


def _intent(intent: Any) -> Intent:
    said: Any = intent if isinstance(intent, dict) else {}
    return Intent(said.get("kind"), _bits(said.get("numbers")), said.get("round"))


def _parents(graph: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple([_listed(one) for one in _listed(graph.get("parents"))])


def event(row: tuple[Any, ...]) -> Event:
    """A row of the table of events."""
    position, entity, tenant, sequence, type_, at_ms, origin, text = row
    properties = _object(text)
    says: dict[str, Plain] = {}
    for name, wire, read in _READERS.get(type_, ()):
        value = properties.get(wire)
        if name == "output":
            value = _output(value) if wire in properties else None
        elif value is not None and read is not None:
            value = read(value)
        says[name] = value
    blobs: tuple[str, ...] = ()
    if _OVERFLOW in properties:
        blobs = _keys(_part(properties, _OVERFLOW))
    elif isinstance(says.get("output"), str) and str(says["output"]).startswith(v.BLOB):
        blobs = (str(says["output"]).removeprefix(v.BLOB),)
    return Event(position, entity, tenant, sequence, type_, at_ms * 1000, origin, says, blobs)


def _output(value: Any) -> str:
    """A result as an event carries it: JSON, a mark for where it is, or JSON that looks so."""
    match value:
        case {"_ref": {"key": key}} if len(value) == 1:
            return f"{v.BLOB}{key}"
        case {"_literal": literal} if len(value) == 1:
            return _canonical(literal)
    return _canonical(value)


def _from_ms(value: Any) -> Any:
    return value * 1000 if type(value) is int else value


# Where an event's property is not called as the thing in camel case.
_WIRE = {
    "task_id": "requestId",
    "failed_key": "failedTaskId",
    "number": "heartbeatNumber",
    "elapsed": "elapsedMs",
}


def _wire_of(name: str) -> str:
    plain = name.removesuffix("_us")
    first, *rest = plain.split("_")
    return _WIRE.get(plain) or first + "".join(word.capitalize() for word in rest)


def _reader(name: str) -> Callable[[Any], Any] | None:
    if name.endswith("_us"):
        return _from_ms
    return _listed if name == "tasks" else None


# By event type: what it is called here, what it is called there, and how it is read.
_READERS = {
    type_: tuple((name, _wire_of(name), _reader(name)) for name in wanted)
    for type_, wanted in v.EVENTS.items()
}


def named_in(body: str) -> str | None:
    """The task that a message asks to look at."""
    named = _object(body).get("requestId")
    return named if isinstance(named, str) else None
