"""Rows as items of the ledger's table, and their index keys.

An item holds what its row is now and the events of the change that made it so: the table's stream
hands each new image on, so events are told exactly if their row was written, and in its order.
A write costs by the kilobyte: what a row has at its default is left out, and the rest is packed.

The key is the id, in a bucket by the first letter of the job's: a job and its tasks lie together
and are read by one query, consistently and without an index, and so is what begins with something.
The letter is of a hash, so the buckets fill alike, and so does each part of one that DynamoDB makes
by the id when it holds much or is busy. Index keys:

``listing``  tasks by tenant and time. Written once with the row.
``state``    tasks that are open, by when they are due and were rung; parked ones by when they go
             on by themselves; failed ones by tenant and end; jobs by state, tenant and time. A
             claim, a renewal and whatever else leaves a task open does not move it: that it is
             processing is told by ``t`` beside its key.
``name``     jobs that have a name, by state and time.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from datetime import datetime
from typing import Any
from zlib import crc32

from longshore.adapters.aws.compression import compress_text, decompress_text
from longshore.adapters.shared import codec
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event
from longshore.core.events.types import EntityType
from longshore.core.ids import task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow, TaskSpec
from longshore.core.tasks.states import JobState, TaskState
from longshore.ports.ledger import AnyChange

Item = dict[str, dict[str, Any]]
Row = TaskRow | JobRow

OPEN, PARKED, FAILED, UNSETTLED = "open", "parked-tasks", "failed-tasks", "unsettled"
NEVER = "never"  # after every moment
PROCESSING = "p"
INDEX_ATTRIBUTES = ("g1", "s1", "g2", "s2", "g3", "s3", "t")
BUCKET_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"
"""Of which the hash in a job's id is made."""
OTHER_BUCKET = "~"
_MAX_KEY = "~"  # after whatever a task may be called
_JOB_PREFIX = "job-"


def key_of(row_id: str) -> Item:
    """Where the row of a job or task lies."""
    return {"bucket": {"S": bucket_of(row_id)}, "id": {"S": row_id}}


def id_of(item: Item) -> str:
    """The inverse of ``key_of``."""
    return str(item["id"]["S"])


def bucket_of(row_id: str) -> str:
    """Where a job and its tasks lie."""
    letter = row_id[len(_JOB_PREFIX) : len(_JOB_PREFIX) + 1]
    return letter if letter and letter in BUCKET_LETTERS else OTHER_BUCKET


def buckets_of(prefix: str) -> str:
    """Where rows can lie whose ids begin so."""
    if len(prefix) > len(_JOB_PREFIX):
        return bucket_of(prefix)
    return BUCKET_LETTERS + OTHER_BUCKET if _JOB_PREFIX.startswith(prefix) else ""


def task_key_range(job_id: str, first: str = "") -> dict[str, Any]:
    """Where the tasks of a job lie, from one on, as a query names it."""
    return {
        "partition": ("bucket", bucket_of(job_id)),
        "sort": "id",
        "low": task_id_of(job_id, first),
        "high": task_id_of(job_id, _MAX_KEY),
    }


def task_of(item: Item) -> TaskRow:
    """The task that an item holds."""
    spec, body, _ = _documents(item)
    return codec.task_from_json(spec, body)


def job_of(item: Item) -> JobRow:
    """The job that an item holds."""
    _, body, _ = _documents(item)
    return codec.job_from_json(body)


def is_job(item: Item) -> bool:
    """Whether it is a job's; else it is a task's."""
    return "_" not in item["id"]["S"]


def tenant_of(item: Item) -> str:
    """Whose it is, as its index keys tell."""
    return str(item["s2" if is_job(item) else "g1"]["S"].split("#")[0 if is_job(item) else 1])


def item_of(change: AnyChange, shards: int) -> Item:
    """What is written for a change, besides the key; without an index key it is in no index.

    What is written once (the place in ``listing``) is there only if the row is new.
    """
    row = change.row
    if isinstance(row, TaskRow):
        spec, body = codec.to_json(_non_default_fields(row.spec)), _encode_task(row)
    else:
        spec, body = "", codec.to_json(_non_default_fields(row))
    item: Item = {
        "v": {"N": str(row.version)},
        "change": {"S": row.change_id},
        "last": {"N": str(row.last_sequence)},
        # Three documents of one line each.
        "row": {"B": compress_text("\n".join((spec, body, _encode_events(change.events))))},
    }
    for name, text in index_keys(row, shards, new=not change.expected_version).items():
        item[name] = {"S": text}
    return item


def events_of(item: Item) -> list[Event]:
    """The events of the change that an item was written by."""
    of_job = is_job(item)
    of_task, body, events = _documents(item)
    spec = json.loads(body)["spec"] if of_job else json.loads(of_task)
    envelope = {
        "entityType": (EntityType.JOB if of_job else EntityType.TASK).value,
        "entityId": id_of(item),
        "tenantId": spec["tenant"],
        "app": spec["app"],
    }
    return [from_wire(envelope | each) for each in json.loads(events)]


def _documents(item: Item) -> tuple[str, str, str]:
    spec, body, events = decompress_text(item["row"]["B"]).split("\n")
    return spec, body, events


def _encode_events(events: tuple[Event, ...]) -> str:
    kept = ("sequence", "eventType", "timestamp", "context", "properties")
    wires = (to_wire(event, environment="") for event in events)
    return json.dumps(
        [{name: wire[name] for name in kept} for wire in wires], separators=(",", ":")
    )


def _encode_task(row: TaskRow) -> str:
    body = _non_default_fields(row)
    del body["spec"]
    return codec.to_json(body)


def _non_default_fields(value: Any) -> dict[str, Any]:
    """The fields of a row or spec that are not at their default."""
    return {
        name: found
        for name, default in _DEFAULTS[type(value)].items()
        if (found := getattr(value, name)) != default
    }


def _default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


_DEFAULTS: dict[type, dict[str, Any]] = {
    kind: {field.name: _default_of(field) for field in fields(kind)}
    for kind in (TaskRow, TaskSpec, JobRow)
}


# Index keys -------------------------------------------------------------------------------------


def index_keys(row: Row, shards: int, *, new: bool) -> dict[str, str]:
    """Where a row stands in the indexes; see above."""
    if isinstance(row, TaskRow):
        return _task_keys(row, shard_of(row.spec.job_id, shards), new=new)
    return _job_keys(row, shard_of(row.id, shards))


def _task_keys(row: TaskRow, shard: int, *, new: bool) -> dict[str, str]:
    spec = row.spec
    keys: dict[str, str] = {}
    if new:
        keys |= {
            "g1": listing_partition(spec.tenant, shard),
            "s1": time_key(spec.created_at, row.id),
        }
    if row.state is TaskState.PENDING:
        due, rung = timestamp_key(row.due_at), timestamp_key(row.enqueued_at)
        keys |= {"g2": f"{OPEN}#{shard}", "s2": f"{due}#{rung}#{row.id}"}
    elif row.state is TaskState.PROCESSING:
        keys["t"] = PROCESSING
        if new:
            keys |= {
                "g2": f"{OPEN}#{shard}",
                "s2": f"{timestamp_key(None)}#{timestamp_key(None)}#{row.id}",
            }
    elif row.state is TaskState.PARKED:
        due = NEVER if row.due_at is None else timestamp_key(row.due_at)
        keys |= {"g2": f"{PARKED}#{shard}", "s2": f"{due}#{row.id}"}
    elif row.state is TaskState.FAILED:
        ended = time_key(row.finished_at or spec.created_at, row.id)
        keys |= {"g2": f"{FAILED}#{shard}", "s2": f"{spec.tenant}#{ended}"}
    return keys


def keeps_state_index_key(row: Row) -> bool:
    """Whether a change of the row leaves its place in ``state`` as it was."""
    return isinstance(row, TaskRow) and row.state is TaskState.PROCESSING


def _job_keys(row: JobRow, shard: int) -> dict[str, str]:
    spec = row.spec
    group = state_group(row)
    at = time_key(spec.created_at, row.id)
    keys = {"g2": f"{group}#{shard}", "s2": f"{spec.tenant}#{at}"}
    if spec.name is not None:
        keys |= {"g3": name_partition(spec.tenant, spec.name), "s3": f"{group}#{at}"}
    return keys


def state_group(row: JobRow) -> str:
    """Where a job stands: by its state, or among those that somebody has to look after."""
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
    """A place in an order by time."""
    return f"{timestamp_key(at)}#{row_id}"


def timestamp_key(at: datetime | None) -> str:
    """A moment as text that is ordered as moments are."""
    return f"{max(codec.to_us(at), 0) if at else 0:020d}"
