"""Rows and events that are kept as JSON, as evidence: what the documents mean.

Whatever is not as expected is handed on as it is, or as None, for the audit to judge. What a store
has left out because it is as usual is filled in here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from longshore.testing.auditing import vocabulary as v
from longshore.testing.auditing.evidence import Event, Intent, Job, Lease, Plain, Task

Blob = Callable[[str], bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OVERFLOW = "_s3Overflow"
_decode = msgspec.json.Decoder().decode


def object_in(text: Any) -> Any:
    """A JSON object; one without anything in it if the text is none.

    Nothing is promised of what is in it: that is for the audit.
    """
    value = _value(text)
    return value if isinstance(value, dict) else {}


def list_in(text: Any) -> list[Any]:
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


def us_of(moment: Any) -> Any:
    """A moment in whole microseconds since 1970."""
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


def part_of(of: dict[str, Any], name: str) -> Any:
    """A document inside another; one without anything in it if there is none."""
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


def task_in(task_id: Any, spec: Any, body: Any, blob: Blob) -> Task:
    """A task: what was asked for, and what has become of it."""
    lease, cancel, failure = (
        part_of(body, "lease"),
        part_of(body, "cancel"),
        part_of(body, "failure"),
    )
    result = part_of(body, "result")
    parents = part_of(spec, "parents")
    named = _keys(
        part_of(spec, "input"),
        parents,
        part_of(spec, "dependents"),
        result,
        part_of(body, "previous_result"),
    )
    checkpoint = body.get("checkpoint")
    return Task(
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
        max_attempts=part_of(spec, "retry").get("max_attempts", v.USUAL_ATTEMPTS),
        fence=body.get("fence", 0),
        revision=body.get("revision", 0),
        last_sequence=body.get("last_sequence", 0),
        awaits=_bits(body.get("awaits")),
        lease=_lease(lease) if lease else None,
        not_before_us=us_of(spec.get("not_before")),
        due_us=us_of(body.get("due_at")),
        started_us=us_of(body.get("started_at")),
        finished_us=us_of(body.get("finished_at")),
        cancel_us=us_of(cancel.get("at")),
        last_event_us=us_of(body.get("last_event_at")),
        last_output=body.get("last_output"),
        result=_document(result),
        failure=failure.get("category"),
        parents=_listed(_loaded(parents, blob) if parents else []),
        blobs=named if checkpoint is None else (*named, checkpoint),
    )


def _lease(lease: Any) -> Lease:
    return Lease(
        worker_id=lease.get("worker_id"),
        fence=lease.get("fence"),
        since_us=us_of(lease.get("acquired_at")),
        until_us=us_of(lease.get("expires_at")),
        heartbeats=lease.get("heartbeats", 0),
    )


def job_in(job_id: Any, body: Any, blob: Blob) -> Job:
    """A job."""
    spec, intents = part_of(body, "spec"), _listed(body.get("intents") or [])
    graph = _loaded(part_of(body, "graph"), blob)
    bodies = [part_of(one, "body") for one in intents if isinstance(one, dict)]
    return Job(
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
        last_event_us=us_of(body.get("last_event_at")),
        cancel_us=us_of(part_of(body, "cancel").get("at")),
        finished_us=us_of(body.get("finished_at")),
        intents=tuple([_intent(one) for one in intents]),
        keys=_listed(graph.get("keys")) if isinstance(graph, dict) else None,
        parents=_parents(graph) if isinstance(graph, dict) else (),
        blobs=_keys(part_of(body, "graph"), *bodies),
    )


def _intent(intent: Any) -> Intent:
    said: Any = intent if isinstance(intent, dict) else {}
    return Intent(said.get("kind"), _bits(said.get("numbers")), said.get("round"))


def _parents(graph: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple([_listed(one) for one in _listed(graph.get("parents"))])


def event_in(
    position: Any,
    entity: Any,
    tenant: Any,
    sequence: Any,
    type_: Any,
    at_ms: Any,
    origin: Any,
    properties: dict[str, Any],
) -> Event:
    """An event, by its envelope and by what it says."""
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
        blobs = _keys(part_of(properties, _OVERFLOW))
    elif isinstance(says.get("output"), str) and str(says["output"]).startswith(v.BLOB):
        blobs = (str(says["output"]).removeprefix(v.BLOB),)
    return Event(position, entity, tenant, sequence, type_, _from_ms(at_ms), origin, says, blobs)


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
    named = object_in(body).get("requestId")
    return named if isinstance(named, str) else None
