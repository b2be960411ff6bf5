"""Rows as items of the ledger's table, and their index keys.

An item holds its row and the events of the last change: the table's stream delivers each new image,
so events are published exactly if their row was written, and in its order. A write costs by the
kilobyte: fields at their default are left out, and the rest is compressed.

The key is the id, in a bucket named by the last digit of the job's id. A job and its tasks are
together and are read by one consistent query without an index. The digit is part of a hash, so
buckets grow evenly, also where ids begin with a time; DynamoDB splits a large or busy bucket by the
id. A search by a prefix of job ids asks every bucket. Index keys:

``listing``  tasks by tenant and time. Written once with the row.
``state``    open tasks by the time they are due and were enqueued; parked tasks by the time they
             continue; failed tasks by tenant and end; jobs by state, tenant and time. A change that
             leaves a task open, such as a claim or a renewal, does not move it: ``t`` beside the
             key says that the task is processing. Removed jobs by the time they are due.
``name``     jobs that have a name, by state and time.

The items of a job that was removed stay without a row for a while, as tombstones (``retention``).
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from datetime import datetime
from typing import Any
from zlib import crc32

from longshore.adapters.aws.attributes import Item, compress_text, decompress_text
from longshore.adapters.aws.tables import LAST_KEY, Query
from longshore.adapters.shared import codec
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event
from longshore.core.events.types import EntityType
from longshore.core.ids import ID_DIGITS, JOB_PREFIX, parse_id, task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow, TaskSpec
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.ledger import AnyChange

Row = TaskRow | JobRow

OPEN, PARKED, FAILED, UNSETTLED = "open", "parked-tasks", "failed-tasks", "unsettled"
REMOVED = "removed"
HAS_ROW = "attribute_exists(#row)"
"""The condition that an item is not a tombstone."""
NEVER = "never"  # after every moment
PROCESSING = "p"
OTHER_BUCKET = "~"
"""The bucket of rows whose id is not that of a job or its task."""


def key_of(row_id: str) -> Item:
    """The key of the row of a job or task."""
    return {"bucket": bucket_of(row_id), "id": row_id}


def id_of(item: Item) -> str:
    """The inverse of ``key_of``."""
    return str(item["id"])


def bucket_of(row_id: str) -> str:
    """The bucket of a job and its tasks."""
    job_id = row_id.partition("_")[0]
    return OTHER_BUCKET if parse_id(JOB_PREFIX, job_id) is None else job_id[-1]


def buckets_of(prefix: str) -> str:
    """The buckets of rows whose ids have this prefix."""
    if "_" in prefix or parse_id(JOB_PREFIX, prefix) is not None:
        return bucket_of(prefix)
    return ID_DIGITS + OTHER_BUCKET


def tasks_query(job_id: str, first: str = "") -> Query:
    """The tasks of a job, from one task key on."""
    return Query(
        partition=("bucket", bucket_of(job_id)),
        sort="id",
        low=task_id_of(job_id, first),
        high=task_id_of(job_id, LAST_KEY),
        where=HAS_ROW,
    )


def is_tombstone(item: Item) -> bool:
    """Whether the row of an item was removed."""
    return "until" in item


def task_of(item: Item) -> TaskRow:
    spec, body, _ = _documents(item)
    return codec.task_from_json(spec, body)


def job_of(item: Item) -> JobRow:
    _, body, _ = _documents(item)
    return codec.job_from_json(body)


def is_job(item: Item) -> bool:
    return "_" not in item["id"]


def tenant_of(item: Item) -> str:
    """The tenant of a row, from its index keys."""
    key, part = ("s2", 0) if is_job(item) else ("g1", 1)
    return str(item[key].split("#")[part])


def item_of(change: AnyChange, shards: int) -> Item:
    """The attributes that a change writes, besides the key.

    The key of ``listing`` is written only if the row is new.
    """
    row = change.row
    body, spec = _non_default_fields(row), ""
    if isinstance(row, TaskRow):
        spec = codec.to_json(_non_default_fields(body.pop("spec")))
    documents = (spec, codec.to_json(body), _encode_events(change.events))
    return {
        "v": row.version,
        "change": row.change_id,
        "last": row.last_sequence,
        "row": compress_text("\n".join(documents)),
        **index_keys(row, shards, new=not change.expected_version),
    }


def events_of(item: Item) -> list[Event]:
    """The events of the change that wrote an item."""
    of_job = is_job(item)
    of_task, body, events = _documents(item)
    spec = json.loads(body)["spec"] if of_job else json.loads(of_task)
    envelope = {
        "entityType": (EntityType.JOB if of_job else EntityType.TASK).value,
        "entityId": id_of(item),
        "tenantId": spec["tenant"],
        "app": spec["app"],
    }
    return [from_wire(envelope | event) for event in json.loads(events)]


def _documents(item: Item) -> tuple[str, str, str]:
    spec, body, events = decompress_text(item["row"]).split("\n")
    return spec, body, events


def _encode_events(events: tuple[Event, ...]) -> str:
    stored = ("sequence", "eventType", "timestamp", "context", "properties")
    documents = (to_wire(event, environment="") for event in events)
    return json.dumps(
        [{name: document[name] for name in stored} for document in documents], separators=(",", ":")
    )


def _non_default_fields(value: Any) -> dict[str, Any]:
    """The fields of a row or spec that are not at their default."""
    return {
        name: field_value
        for name, default in _DEFAULTS[type(value)].items()
        if (field_value := getattr(value, name)) != default
    }


def _default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


_DEFAULTS: dict[type, dict[str, Any]] = {
    kind: {field.name: _default_of(field) for field in fields(kind)}
    for kind in (TaskRow, TaskSpec, JobRow)
}


# Index keys -------------------------------------------------------------------------------------


def index_keys(row: Row, shards: int, *, new: bool) -> dict[str, str]:
    """The index keys of a row; see the module."""
    if isinstance(row, TaskRow):
        return _task_keys(row, shard_of(row.spec.job_id, shards), new=new)
    return _job_keys(row, shard_of(row.id, shards))


def _task_keys(row: TaskRow, shard: int, *, new: bool) -> dict[str, str]:
    spec = row.spec
    keys = {"t": PROCESSING} if row.state is TaskState.PROCESSING else {}
    if new:
        keys["g1"] = listing_partition(spec.tenant, shard)
        keys["s1"] = time_key(spec.created_at, row.id)
    match row.state:
        case TaskState.PENDING:
            due, enqueued = timestamp_key(row.due_at), timestamp_key(row.enqueued_at)
            group, sort = OPEN, f"{due}#{enqueued}#{row.id}"
        case TaskState.PROCESSING if new:
            group, sort = OPEN, f"{timestamp_key(None)}#{timestamp_key(None)}#{row.id}"
        case TaskState.PARKED:
            due = NEVER if row.due_at is None else timestamp_key(row.due_at)
            group, sort = PARKED, f"{due}#{row.id}"
        case TaskState.FAILED:
            ended = time_key(row.finished_at or spec.created_at, row.id)
            group, sort = FAILED, f"{spec.tenant}#{ended}"
        case _:
            return keys
    return keys | {"g2": f"{group}#{shard}", "s2": sort}


def _job_keys(row: JobRow, shard: int) -> dict[str, str]:
    spec = row.spec
    group = state_group(row)
    at = time_key(spec.created_at, row.id)
    keys = {"g2": f"{group}#{shard}", "s2": f"{spec.tenant}#{at}"}
    if spec.name is not None:
        keys |= {"g3": name_partition(spec.tenant, spec.name), "s3": f"{group}#{at}"}
    return keys


def state_group(row: JobRow) -> str:
    """The group of a job in ``state``: its state, or those that the sweeper must settle."""
    if row.state is not JobState.RUNNING and (row.intents or row.end_unreported):
        return UNSETTLED
    return row.state.value


def shard_of(job_id: str, shards: int) -> int:
    """The shard of everything that belongs to a job."""
    return crc32(job_id.encode()) % shards


def listing_partition(tenant: str, shard: int) -> str:
    """The partition of a tenant's tasks."""
    return f"T#{tenant}#{shard}"


def name_partition(tenant: str, name: str) -> str:
    """The partition of a tenant's jobs of one name."""
    # A tenant has no "#", so no name can be taken for another tenant's.
    return f"N#{tenant}#{name}"


def time_key(at: datetime, row_id: str) -> str:
    """A key in an order by time."""
    return f"{timestamp_key(at)}#{row_id}"


def timestamp_key(at: datetime | None) -> str:
    """A time as text with the same order."""
    return f"{max(codec.to_us(at), 0) if at else 0:020d}"
