"""Rows and events that are kept as JSON, as evidence: what the documents mean.

Data that is not as expected is passed on unchanged or as None; the audit reports it. What a store
has left out because it is as usual is filled in here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from longshore.audit import vocabulary as v
from longshore.audit.store_snapshot import (
    EventRecord,
    FieldValue,
    IntentRecord,
    JobRecord,
    LeaseRecord,
    TaskRecord,
)

ReadBlob = Callable[[str], bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OVERFLOW = "_s3Overflow"
_decode = msgspec.json.Decoder().decode


def parse_object(text: Any) -> Any:
    """A JSON object; one without anything in it if the text is none.

    Nothing is promised of what is in it: that is for the audit.
    """
    value = _value(text)
    return value if isinstance(value, dict) else {}


def parse_list(text: Any) -> list[Any]:
    """A JSON list; one without anything in it if the text is none."""
    value = _value(text)
    return value if isinstance(value, list) else []


def _value(text: str | bytes | None) -> Any:
    try:
        return _decode(text or b"")
    except (msgspec.MsgspecError, UnicodeError, TypeError):
        pass
    try:
        return json.loads(text or b"")  # what msgspec does not take, such as half a surrogate pair
    except (ValueError, TypeError):
        return None


def parse_us(moment: Any) -> Any:
    """A moment in whole microseconds since 1970."""
    if not isinstance(moment, str):
        return moment
    try:
        return (datetime.fromisoformat(moment) - _EPOCH) // _MICROSECOND
    except (ValueError, TypeError):
        return moment


def _duration_us(text: Any) -> Any:
    """The longest wait for rate limits in whole microseconds; the usual one if it is not stored."""
    if text is None:
        return v.USUAL_RATE_LIMIT_WAIT_US
    try:
        return msgspec.convert(text, timedelta) // _MICROSECOND
    except msgspec.ValidationError:
        return text


def _bits(text: Any) -> Any:
    try:
        return int(text or "0", 16)
    except (ValueError, TypeError):
        return text


def child_object(document: dict[str, Any], name: str) -> Any:
    """A document inside another; one without anything in it if there is none."""
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _load(document: dict[str, Any], blob: ReadBlob) -> Any:
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
    return tuple([item["key"] for item in documents if item.get("key") is not None])


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else ()


def parse_task(task_id: Any, spec: Any, body: Any, blob: ReadBlob) -> TaskRecord:
    """A task: what was asked for, and what has become of it."""
    lease, cancel, failure = (
        child_object(body, "lease"),
        child_object(body, "cancel"),
        child_object(body, "failure"),
    )
    result = child_object(body, "result")
    parents, retry = child_object(spec, "parents"), child_object(spec, "retry")
    named = _keys(
        child_object(spec, "input"),
        parents,
        child_object(spec, "dependents"),
        result,
        child_object(body, "previous_result"),
    )
    checkpoint = body.get("checkpoint")
    return TaskRecord(
        id=task_id,
        tenant=spec.get("tenant"),
        job_id=spec.get("job_id"),
        key=spec.get("key"),
        number=spec.get("number"),
        queue=spec.get("queue", v.USUAL_QUEUE),
        state=body.get("state"),
        version=body.get("version"),
        round=body.get("round", 1),
        attempt=body.get("attempt", 0),
        attempts_used=body.get("attempts_used", 0),
        max_attempts=retry.get("max_attempts", v.USUAL_ATTEMPTS),
        rate_limit_wait_us=_duration_us(retry.get("rate_limit_wait")),
        fence=body.get("fence", 0),
        revision=body.get("revision", 0),
        last_sequence=body.get("last_sequence", 0),
        awaits=_bits(body.get("awaits")),
        lease=_lease(lease) if lease else None,
        not_before_us=parse_us(spec.get("not_before")),
        due_us=parse_us(body.get("due_at")),
        started_us=parse_us(body.get("started_at")),
        finished_us=parse_us(body.get("finished_at")),
        cancel_us=parse_us(cancel.get("at")),
        last_event_us=parse_us(body.get("last_event_at")),
        last_output=body.get("last_output"),
        result=_document(result),
        failure=failure.get("category"),
        parents=_as_tuple(_load(parents, blob) if parents else []),
        blobs=named if checkpoint is None else (*named, checkpoint),
    )


def _lease(lease: Any) -> LeaseRecord:
    return LeaseRecord(
        worker_id=lease.get("worker_id"),
        fence=lease.get("fence"),
        since_us=parse_us(lease.get("acquired_at")),
        until_us=parse_us(lease.get("expires_at")),
        heartbeats=lease.get("heartbeats", 0),
    )


def parse_job(job_id: Any, body: Any, blob: ReadBlob) -> JobRecord:
    """A job."""
    spec, intents = child_object(body, "spec"), _as_tuple(body.get("intents") or [])
    graph = _load(child_object(body, "graph"), blob)
    bodies = [child_object(item, "body") for item in intents if isinstance(item, dict)]
    return JobRecord(
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
        failure_emitted_round=body.get("failure_emitted_round", 0),
        end_emitted_round=body.get("end_emitted_round", 0),
        last_sequence=body.get("last_sequence", 0),
        last_event_us=parse_us(body.get("last_event_at")),
        cancel_us=parse_us(child_object(body, "cancel").get("at")),
        finished_us=parse_us(body.get("finished_at")),
        intents=tuple([_intent(item) for item in intents]),
        keys=_as_tuple(graph.get("keys")) if isinstance(graph, dict) else None,
        parents=_parents(graph) if isinstance(graph, dict) else (),
        blobs=_keys(child_object(body, "graph"), *bodies),
    )


def _intent(intent: Any) -> IntentRecord:
    document: Any = intent if isinstance(intent, dict) else {}
    return IntentRecord(document.get("kind"), _bits(document.get("numbers")), document.get("round"))


def _parents(graph: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple([_as_tuple(item) for item in _as_tuple(graph.get("parents"))])


def parse_event(
    position: Any,
    entity: Any,
    tenant: Any,
    sequence: Any,
    type_: Any,
    at_ms: Any,
    origin: Any,
    properties: dict[str, Any],
) -> EventRecord:
    """An event, by its envelope and by what it says."""
    says: dict[str, FieldValue] = {}
    for name, json_name, read in _READERS.get(type_, ()):
        value = properties.get(json_name)
        if name == "output":
            value = _output(value) if json_name in properties else None
        elif value is not None and read is not None:
            value = read(value)
        says[name] = value
    blobs: tuple[str, ...] = ()
    if _OVERFLOW in properties:
        blobs = _keys(child_object(properties, _OVERFLOW))
    elif isinstance(says.get("output"), str) and str(says["output"]).startswith(v.BLOB):
        blobs = (str(says["output"]).removeprefix(v.BLOB),)
    return EventRecord(
        position, entity, tenant, sequence, type_, _from_ms(at_ms), origin, says, blobs
    )


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
_PROPERTY_NAMES = {
    "task_id": "requestId",
    "failed_key": "failedTaskId",
    "number": "heartbeatNumber",
    "elapsed": "elapsedMs",
    "retry_after": "retryAfterMs",
}


def _property_name(name: str) -> str:
    plain = name.removesuffix("_us")
    first, *rest = plain.split("_")
    return _PROPERTY_NAMES.get(plain) or first + "".join(word.capitalize() for word in rest)


def _reader(name: str) -> Callable[[Any], Any] | None:
    if name.endswith("_us"):
        return _from_ms
    return _as_tuple if name == "tasks" else None


# By event type: what it is called here, what it is called there, and how it is read.
_READERS = {
    type_: tuple((name, _property_name(name), _reader(name)) for name in schema)
    for type_, schema in v.EVENTS.items()
}


def task_id_in(body: str) -> str | None:
    """The task that a message asks to look at."""
    named = parse_object(body).get("requestId")
    return named if isinstance(named, str) else None
