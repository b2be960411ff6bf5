"""Items of DynamoDB's tables as evidence.

Some values of a row are stored a second time in attributes that are indexed: both must agree. Data
that is not as expected is passed on unchanged, and the audit reports it.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

# A dictionary cannot be written down twice: this unpacks bytes and knows nothing of what they say.
from longshore.adapters.aws.attributes import decompress_text
from longshore.audit import vocabulary as v
from longshore.audit.json_documents import (
    ReadBlob,
    child_object,
    parse_event,
    parse_job,
    parse_list,
    parse_object,
    parse_task,
    parse_us,
)
from longshore.audit.store_snapshot import EventRecord, JobRecord, OutputRecord, TaskRecord

Item = dict[str, dict[str, Any]]
Mismatches = list[tuple[str, str]]

_STREAMS = ("stdout", "stderr", "log", v.LOST)
_DEFLATED = 1
_DUE_NOW = f"{0:020d}#"
_entries_of = msgspec.msgpack.Decoder().decode


class LedgerItem(NamedTuple):
    """The parts of a ledger item: its specification, its row, and its events."""

    spec: dict[str, Any]  # of a task
    body: dict[str, Any]
    events: list[Any]  # the events of the change that wrote it


def parse_row(item: Item) -> LedgerItem:
    """The documents of an item, one to a line; without any where they cannot be unpacked."""
    try:
        spec, body, event_document = decompress_text(item["row"]["B"]).split("\n")
    except Exception:  # noqa: BLE001 - the audit reports unreadable data
        spec = body = event_document = ""
    return LedgerItem(parse_object(spec), parse_object(body), parse_list(event_document))


def id_of(item: Item) -> str:
    """The job or task whose row lies here."""
    return str(_text(item, "id"))


def is_job(item: Item) -> bool:
    """Whether it is a job's row and not a task's."""
    return "_" not in id_of(item)


def is_tombstone(item: Item) -> bool:
    """Whether the row of the item was removed with its job."""
    return "until" in item


def is_being_removed(item: Item) -> bool:
    """Whether parts of the item's job, which was removed, may be left."""
    return is_tombstone(item) and is_job(item) and str(_text(item, "s2")).startswith(_DUE_NOW)


def has_expired(item: Item) -> bool:
    """Whether the time of the item is over."""
    expires_at_s = plain(item.get("ttl"))
    return type(expires_at_s) is int and expires_at_s < time.time()


def bucket_of(job_id: str) -> str:
    """Where a job and its tasks lie: by the last digit of the job's id."""
    digits = job_id.partition("_")[0].removeprefix("job-")
    return digits[-1] if re.fullmatch("[0-9a-v]{24}", digits) else "~"


def version_of(item: Item) -> Any:
    """The version of the row, as the ledger compares it."""
    return plain(item.get("v"))


def last_sequence_of(item: Item) -> Any:
    """The sequence of the last event of the row, as readers of its history know it."""
    return plain(item.get("last"))


def task(item: Item, blob: ReadBlob, mismatches: Mismatches) -> TaskRecord:
    """A task's row."""
    task_id, row = id_of(item), parse_row(item)
    record = parse_task(task_id, row.spec, row.body, blob)
    stored_values = [
        ("id", task_id, row.spec.get("id")),
        ("version", version_of(item), record.version),
        ("last event", last_sequence_of(item), record.last_sequence),
        ("change", _text(item, "change"), row.body.get("change_id")),
        ("bucket", _text(item, "bucket"), bucket_of(task_id)),
        ("tenant", _partition(item, "g1"), ["T", record.tenant]),
        ("state", *_state_index(item, record, parse_us(row.body.get("enqueued_at")))),
    ]
    _compare(task_id, stored_values, mismatches)
    return record


def _state_index(item: Item, task: TaskRecord, enqueued_us: Any) -> tuple[Any, Any]:
    """Where the sweeper looks for it, and where it should."""
    group, sort_key = _text(item, "g2"), _text(item, "s2")
    there = [*str(group).split("#")[:1], *str(sort_key).split("#")[:2]] if group else None
    due, enqueued = _moment(task.due_us), _moment(enqueued_us)
    if task.state == v.PENDING:
        return there, ["open", due, enqueued]
    if task.state == v.PROCESSING:
        # It stays where it was when it was claimed.
        return [(there or [""])[0], _text(item, "t")], ["open", "p"]
    if task.state == v.FAILED:
        return there, ["failed", task.tenant, _moment(task.finished_us)]
    return there, None


def _moment(us: Any) -> str:
    return f"{max(us, 0):020d}" if type(us) is int else f"{0:020d}"


def job(item: Item, blob: ReadBlob, mismatches: Mismatches) -> JobRecord:
    """A job's row."""
    job_id, row = id_of(item), parse_row(item)
    record = parse_job(job_id, row.body, blob)
    stored_values = [
        ("id", job_id, child_object(row.body, "spec").get("id")),
        ("version", version_of(item), record.version),
        ("last event", last_sequence_of(item), record.last_sequence),
        ("change", _text(item, "change"), row.body.get("change_id")),
        ("bucket", _text(item, "bucket"), bucket_of(job_id)),
        ("tenant", str(_text(item, "s2")).split("#")[0], record.tenant),
    ]
    sets = (record.total, record.completed, record.failed, record.cancelled, record.blocked)
    if all(type(number) is int for number in (*sets, record.end_emitted_round, record.round)):
        state = v.job_state(record)
        unsettled = state != v.RUNNING and (record.intents or v.end_event_missing(record))
        there = (_partition(item, "g2") or [""])[0]
        stored_values.append(("state", there, "unsettled" if unsettled else state))
    _compare(job_id, stored_values, mismatches)
    return record


def _partition(item: Item, name: str) -> list[str] | None:
    """What an index key says, without the part by which it is spread."""
    text = _text(item, name)
    return text.split("#")[:-1] if isinstance(text, str) else None


def _compare(subject: str, pairs: list[tuple[str, Any, Any]], mismatches: Mismatches) -> None:
    for name, there, expected in pairs:
        if there != expected:
            mismatches.append(
                (subject, f"it is found by {name} {there!r}, but its row says {expected!r}")
            )


def event(item: Item, mismatches: Mismatches) -> EventRecord:
    """An item of the table of events."""
    document = {name: plain(value) for name, value in item.items()}
    properties = document.get("properties")
    if isinstance(properties, str):  # more than a map can hold
        properties = parse_object(properties)
    entity = f"{document.get('entityType')}#{document.get('entityId')}"
    tenant, sequence, at_ms = (
        document.get("tenantId"),
        document.get("sequence"),
        document.get("timestamp"),
    )
    at = f"TIMESTAMP#{at_ms}"
    sort_key = f"{at}#EVENT#{document.get('eventId')}"
    stored_values = [
        ("entity", document.get("GSI1PK"), entity),
        ("tenant", document.get("PK"), f"TENANT#{tenant}"),
        ("place", document.get("SK"), sort_key),
    ]
    if "GSI4PK" in document:  # an installation may do without this index
        stored_values.append(("type", document["GSI4PK"], f"EVENT#{document.get('eventType')}"))
    for name, there, expected in stored_values:
        if there != expected:
            text = f"event {sequence} is found by {name} {there!r}, and says {expected!r}"
            mismatches.append((str(document.get("entityId")), text))
    type_, context = document.get("eventType"), document.get("context")
    return parse_event(
        at_ms * 1000 if type(at_ms) is int else at_ms,
        entity,
        tenant,
        sequence,
        type_ if isinstance(type_, str) else None,
        at_ms,
        context.get("origin") if isinstance(context, dict) else None,
        properties if isinstance(properties, dict) else {},
    )


def compare_events(item: Item, stored: dict[Any, Item], mismatches: Mismatches) -> None:
    """Compare the events of a row's last change with the history, by sequence."""
    for event_document in parse_row(item).events:
        there = (
            stored.get(event_document.get("sequence")) if isinstance(event_document, dict) else None
        )
        if there is None:
            continue  # missing: that is for the audit to say
        for name in ("eventType", "timestamp", "properties"):
            stored_value = plain(there.get(name))
            if name == "properties" and isinstance(stored_value, str):
                stored_value = parse_object(stored_value)
            if stored_value != event_document.get(name):
                text = f"event {event_document['sequence']} has another {name} than its row has"
                mismatches.append((id_of(item), text))


def output(task_id: str, item: Item) -> Iterator[OutputRecord]:
    """The entries in an item of the table of output; none of one that keeps a place free."""
    attempt, _, first = str(_text(item, "position")).partition(".")
    data = item.get("data", {}).get("B")
    if data is None:
        return
    sequence = int(first)
    for _, stream, _, last in _entries_of(_decompressed(bytes(data))):
        yield OutputRecord(task_id, int(attempt), sequence, _STREAMS[stream], last)
        sequence = max(sequence, last or 0) + 1


def _decompressed(data: bytes) -> bytes:
    return zlib.decompress(data[1:]) if data[0] == _DEFLATED else data[1:]


def plain(attribute: Any) -> Any:
    """The value of an attribute; None if there is none."""
    match attribute:
        case {"N": str(text)}:
            return float(text) if any(character in text for character in ".eE") else int(text)
        case {"M": dict(parts)}:
            return {name: plain(part) for name, part in parts.items()}
        case {"L": list(parts)}:
            return [plain(part) for part in parts]
        case {"S": value} | {"BOOL": value} | {"B": value}:
            return value
    return None


def _text(item: Item, name: str) -> Any:
    return item.get(name, {}).get("S")
