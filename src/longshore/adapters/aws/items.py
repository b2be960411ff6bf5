"""Rows as items of the ledger's table, and their index keys.

An item holds what its row is now and the events of the change that made it so: the table's stream
hands each new image on, so events are told exactly if their row was written, and in its order.
What a row has at its default is left out, because a write costs by the kilobyte.

The key is the job and the task's key in it (``.`` for the job itself), so that a job and its tasks
lie together and are read by one query, consistently and without an index. Index keys:

``listing``  tasks by tenant and time; jobs by tenant and id. Written once with the row.
``state``    tasks that are open, by when they are due and were rung; failed ones by tenant and end;
             jobs by state, tenant and time. A claim, a renewal and whatever else leaves a task open
             does not move it: that it is processing is told by ``t`` beside its key.
``name``     jobs that have a name, by state and time.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from datetime import datetime
from typing import Any, Final
from zlib import crc32

from longshore.adapters.shared import codec
from longshore.core.events.codec import from_wire, to_wire
from longshore.core.events.event import Event
from longshore.core.events.types import EntityType
from longshore.core.ids import split_task_id
from longshore.core.rows import JobRow, TaskRow, TaskSpec
from longshore.core.states import JobState, TaskState
from longshore.ports.ledger import AnyChange

Item = dict[str, dict[str, Any]]
Row = TaskRow | JobRow

JOB_ITSELF: Final = "."
OPEN, FAILED, UNSETTLED = "open", "failed", "unsettled"
PROCESSING = "p"
INDEXED = ("g1", "s1", "g2", "s2", "g3", "s3", "t")
LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
OTHER_LETTERS = "~"
_LETTER = 4  # after "job-"


def key_of(row_id: str) -> Item:
    """Where the row of a job or task lies."""
    job_id, key = split_task_id(row_id)
    return {"job": {"S": job_id}, "task": {"S": key or JOB_ITSELF}}


def id_of(item: Item) -> str:
    """The inverse of ``key_of``."""
    job_id, key = item["job"]["S"], item["task"]["S"]
    return job_id if key == JOB_ITSELF else f"{job_id}_{key}"


def task_of(item: Item) -> TaskRow:
    """The task that an item holds."""
    return codec.task_from_json(item["spec"]["S"], item["body"]["S"])


def job_of(item: Item) -> JobRow:
    """The job that an item holds."""
    return codec.job_from_json(item["body"]["S"])


def item_of(change: AnyChange, shards: int) -> Item:
    """What is written for a change, besides the key; without an index key it is in no index.

    What is written once (the spec, the place in ``listing``) is there only if the row is new.
    """
    row = change.row
    item: Item = {
        "v": {"N": str(row.version)},
        "change": {"S": row.change_id},
        "last": {"N": str(row.last_sequence)},
        "events": {"S": _events_text(change.events)},
    }
    if isinstance(row, TaskRow):
        item["body"] = {"S": _task_body(row)}
        if not change.expected_version:
            item["spec"] = {"S": codec.to_json(_unusual(row.spec))}
    else:
        item["body"] = {"S": codec.to_json(_unusual(row))}
    for name, text in index_keys(row, shards, new=not change.expected_version).items():
        item[name] = {"S": text}
    return item


def events_in(item: Item) -> list[Event]:
    """The events of the change that an item was written by."""
    job_id, key = item["job"]["S"], item["task"]["S"]
    of_job = key == JOB_ITSELF
    spec = json.loads(item["body" if of_job else "spec"]["S"])
    spec = spec["spec"] if of_job else spec
    envelope = {
        "entityType": (EntityType.JOB if of_job else EntityType.TASK).value,
        "entityId": job_id if of_job else f"{job_id}_{key}",
        "tenantId": spec["tenant"],
        "app": spec["app"],
    }
    return [from_wire(envelope | each) for each in json.loads(item["events"]["S"])]


def _events_text(events: tuple[Event, ...]) -> str:
    kept = ("sequence", "eventType", "timestamp", "context", "properties")
    wires = (to_wire(event, environment="") for event in events)
    return json.dumps(
        [{name: wire[name] for name in kept} for wire in wires], separators=(",", ":")
    )


def _task_body(row: TaskRow) -> str:
    body = _unusual(row)
    del body["spec"]
    return codec.to_json(body)


def _unusual(value: Any) -> dict[str, Any]:
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
    return _job_keys(row, shard_of(row.id, shards), new=new)


def _task_keys(row: TaskRow, shard: int, *, new: bool) -> dict[str, str]:
    spec = row.spec
    keys: dict[str, str] = {}
    if new:
        keys |= {"g1": listing_of(spec.tenant, shard), "s1": place(spec.created_at, row.id)}
    if row.state is TaskState.PENDING:
        due, rung = moment(row.due_at), moment(row.rung_at)
        keys |= {"g2": f"{OPEN}#{shard}", "s2": f"{due}#{rung}#{row.id}"}
    elif row.state is TaskState.PROCESSING:
        keys["t"] = PROCESSING
        if new:
            keys |= {"g2": f"{OPEN}#{shard}", "s2": f"{moment(None)}#{moment(None)}#{row.id}"}
    elif row.state is TaskState.FAILED:
        ended = place(row.finished_at or spec.created_at, row.id)
        keys |= {"g2": f"{FAILED}#{shard}", "s2": f"{spec.tenant}#{ended}"}
    return keys


def stays_in_state_index(row: Row) -> bool:
    """Whether a change of the row leaves its place in ``state`` as it was."""
    return isinstance(row, TaskRow) and row.state is TaskState.PROCESSING


def _job_keys(row: JobRow, shard: int, *, new: bool) -> dict[str, str]:
    spec = row.spec
    group = group_of(row)
    at = place(spec.created_at, row.id)
    keys = {"g2": f"{group}#{shard}", "s2": f"{spec.tenant}#{at}"}
    if new:
        keys |= {"g1": ids_of(spec.tenant, letter_of(row.id)), "s1": row.id}
    if spec.name is not None:
        keys |= {"g3": named(spec.tenant, spec.name), "s3": f"{group}#{at}"}
    return keys


def group_of(row: JobRow) -> str:
    """Where a job stands: by its state, or among those that somebody has to look after."""
    if row.state is not JobState.RUNNING and (row.intents or row.untold):
        return UNSETTLED
    return row.state.value


def shard_of(job_id: str, shards: int) -> int:
    """The shard of everything that belongs to a job."""
    return crc32(job_id.encode()) % shards


def listing_of(tenant: str, shard: int) -> str:
    """The partition of a tenant's tasks."""
    return f"T#{tenant}#{shard}"


def ids_of(tenant: str, letter: str) -> str:
    """The partition of a tenant's jobs whose ids begin alike."""
    return f"J#{tenant}#{letter}"


def letter_of(job_id: str) -> str:
    """By what the ids of jobs are spread."""
    letter = job_id[_LETTER : _LETTER + 1]
    return letter if letter and letter in LETTERS else OTHER_LETTERS


def named(tenant: str, name: str) -> str:
    """The partition of a tenant's jobs of one name."""
    # A tenant has no "#", so no name can be taken for another tenant's.
    return f"N#{tenant}#{name}"


def place(at: datetime, row_id: str) -> str:
    """A place in an order by time."""
    return f"{moment(at)}#{row_id}"


def moment(at: datetime | None) -> str:
    """A moment as text that is ordered as moments are."""
    return f"{max(codec.to_us(at), 0) if at else 0:020d}"
