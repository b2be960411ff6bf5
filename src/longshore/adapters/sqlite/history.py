"""Histories: the events of a task or job, packed into one value beside its row.

Each event is a record: its length (one byte, or 255 and four bytes), then a msgpack array of

====  ===========================================================================================
0     the number of its type in ``EVENT_NAMES``
1     its time, in milliseconds since the row was created
2     its position in the feed
3     its context: the number of the worker's name, a negative number of ``_CONTEXTS``, or an array
4     its properties: JSON text, or an array of the values that the row does not have
====  ===========================================================================================

The sequences of a history have no gap, so the sequence of the row's last event gives all others.
What a row says once and for all (ids, definition, parents, a completed task's result, the tasks of
a job) is not repeated in its events. A long history continues in segments of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.rows import (
    JOB_COLUMNS,
    NUMBER_BITS,
    SELECT_JOB,
    SELECT_TASK,
    TASK_COLUMNS,
    StoreReader,
    from_ms,
    to_ms,
    unpack_document,
)
from longshore.adapters.sqlite.store_file import Row
from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.codec import body_from_properties, properties_of
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import NO_USAGE, EntityType, EventBody, Usage
from longshore.core.tasks.rows import JobRow, JobSpec, TaskRow, TaskSpec
from longshore.core.tasks.states import TaskState

# A type is stored by its number: add new ones at the end.
EVENT_NAMES = (
    *("Task Pending", "Task Waiting", "Task Processing Started", "Task Heartbeat"),
    *("Task Processing Failed", "Task Released", "Task Parked", "Task Unparked"),
    *("Task Budget Added", "Task Completed", "Task Failed", "Task Timeout", "Task Cancelled"),
    *("Task Submitted For Review", "Task Revision Requested", "Task Approved", "Job Created"),
    *("Job Tasks Added", "Job Completed", "Job Failure Detected", "Job Cancelled", "Job Resumed"),
    *("Job Budget Added", "Message Rejected", "Task Health Check", "Operator Acted"),
)
EVENT_NUMBERS = {name: number for number, name in enumerate(EVENT_NAMES)}
PENDING, STARTED = EVENT_NUMBERS["Task Pending"], EVENT_NUMBERS["Task Processing Started"]
COMPLETED = EVENT_NUMBERS["Task Completed"]
JOB_CREATED, JOB_COMPLETED = EVENT_NUMBERS["Job Created"], EVENT_NUMBERS["Job Completed"]

# A context is stored by its number: add new ones at the end.
_CONTEXTS = (
    *(("producer", "user"), ("dispatcher", "system"), ("sweeper", "system"), ("operator", "user")),
    *(("worker", "system"), ("health-check", "system"), ("system", "system")),
)
_CONTEXT_NUMBERS = {context: -1 - number for number, context in enumerate(_CONTEXTS)}
BY_PRODUCER, BY_DISPATCHER = -1, -2

SEGMENT_BYTES = 1024
"""A history that is longer continues in segments."""

_LONG = 255
_TASK = f"{SELECT_TASK} WHERE t.no = ?"
_JOB = f"{SELECT_JOB} WHERE no = ? AND version > 0"
_MILLISECOND = timedelta(milliseconds=1)
_USAGE_FIELDS = tuple(item.name for item in fields(Usage))
_usage_values = attrgetter(*_USAGE_FIELDS)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class Record(NamedTuple):
    """A packed event."""

    type: int
    ms: int  # since the row was created
    position: int
    context: Any
    properties: Any


def pack_record(*record: Any) -> bytes:
    """The bytes of the five parts of a record."""
    data = _encode(record)
    length = len(data)
    if length < _LONG:
        return length.to_bytes(1, "little") + data
    return b"\xff" + length.to_bytes(4, "little") + data


def unpack_records(history: bytes) -> list[Record]:
    """The records of a history, in order."""
    records, start = [], 0
    while start < len(history):
        length, start = history[start], start + 1
        if length == _LONG:
            length, start = int.from_bytes(history[start : start + 4], "little"), start + 4
        records.append(Record(*_decode(history[start : start + length])))
        start += length
    return records


def pack_event(
    event: Event,
    row: TaskRow | JobRow,
    *,
    position: int,
    number_of: Callable[[str], int],
    tasks_stored: bool,
) -> bytes:
    """The record of an event of a row, as the row is after the event.

    Args:
        number_of: Returns the number of a worker's name.
        tasks_stored: Whether the store has a row for each task of the job.
    """
    origin, source, worker_id = event.context.origin, event.context.source, event.context.worker_id
    packed: Any = _CONTEXT_NUMBERS.get((origin, source)) if worker_id is None else None
    if worker_id is not None and (origin, source) == ("worker", "system"):
        packed = number_of(worker_id)
    if packed is None:
        packed = (origin, source, worker_id)
    properties: Any = None
    if isinstance(row, TaskRow):
        if event.overflow is None:
            properties = _properties_of_task(event, row, number_of)
    elif tasks_stored:
        properties = _properties_of_job(event.body, row)
    if properties is None:
        properties = _json_properties(event, row.spec)
    ms = to_ms(event.at) - to_ms(row.spec.created_at)
    return pack_record(EVENT_NUMBERS[event.type], ms, position, packed, properties)


def _json_properties(event: Event, spec: TaskSpec | JobSpec) -> str:
    ids = _ids_of(spec).items()
    properties = properties_of(event).items()
    return codec.to_json({name: value for name, value in properties if (name, value) not in ids})


def _ids_of(spec: TaskSpec | JobSpec) -> dict[str, str]:
    """The properties of every event that are ids of its row."""
    if isinstance(spec, TaskSpec):
        return {"requestId": spec.id, "jobId": spec.job_id}
    return {"jobId": spec.id}


def _properties_of_task(event: Event, row: TaskRow, number_of: Callable[[str], int]) -> Any:
    """The values that the row does not have; None: the properties must be stored as they are."""
    body, spec = event.body, row.spec
    if not isinstance(body, e.TaskEvent) or (body.task_id, body.job_id) != (spec.id, spec.job_id):
        return None
    if isinstance(body, e.TaskPending):
        if (body.name, body.depends_on) == (spec.definition, spec.parents):
            return (body.round, None if body.due_at is None else to_ms(body.due_at))
    elif isinstance(body, e.TaskProcessingStarted):
        late = to_ms(event.at) - to_ms(body.started_at)
        lease = to_ms(body.effective_until) - to_ms(body.started_at)
        worker = number_of(body.worker_id)
        return (worker, late, lease, body.process_id, body.attempt_number, body.fence)
    elif isinstance(body, e.TaskCompleted) and row.state is TaskState.COMPLETED:
        usage = None if body.usage == NO_USAGE else _usage_values(body.usage)
        duration_ms = body.duration // _MILLISECOND
        if body.output == row.result:
            return (body.attempt_number, duration_ms, body.exit_code, body.last_output, usage)
    return None


def _properties_of_job(body: EventBody, row: JobRow) -> Any:
    """The values that the rows of the job and its tasks do not have, as for a task."""
    if (
        isinstance(body, e.JobCompleted)
        and body.job_id == row.id
        and len(body.task_statuses) == body.total_tasks == row.total
        and set(body.task_statuses.values()) <= {TaskState.COMPLETED.value}
    ):
        return (body.total_tasks, body.round)
    return None


class HistoryReader:
    """Reads packed events.

    Args:
        reader: For what the events do not repeat.
        read_blob: Returns the bytes of a blob.
    """

    def __init__(self, reader: StoreReader, read_blob: Callable[[str], bytes]) -> None:
        self._reader = reader
        self._read_blob = read_blob

    def of_number(self, entity: int, only: int | None = None) -> list[tuple[int, Event]]:
        """The events of the task, or of the job with the negated number, with their positions.

        Args:
            only: The sequence of the only event to return.
        """
        matches = self._reader.select(_TASK if entity > 0 else _JOB, (abs(entity),))
        return self._events(entity, matches[0], only) if matches else []

    def _events(self, entity: int, values: Row, only: int | None) -> list[tuple[int, Event]]:
        spec: TaskSpec | JobSpec
        body_of: Callable[[Record, datetime], EventBody]
        if entity > 0:
            columns = dict(zip(TASK_COLUMNS, values, strict=False))
            type_, spec = EntityType.TASK, self._reader.task_spec(values)
            body_of = partial(self._task_body, spec, unpack_document(columns["result"]))
        else:
            columns = dict(zip(JOB_COLUMNS, values, strict=True))
            type_, spec = EntityType.JOB, self._reader.job_spec(values)
            body_of = partial(self._job_body, spec, -entity)
        sql = "SELECT body FROM history_segments WHERE entity = ? ORDER BY first_sequence"
        parts = [body for (body,) in self._reader.select(sql, (entity,))]
        records = [
            record for part in (*parts, columns["history"]) for record in unpack_records(part)
        ]
        created_ms, first = columns["created_us"] // 1000, columns["sequence"] - len(records) + 1
        events = []
        for sequence, record in enumerate(records, first):
            if only not in (None, sequence):
                continue
            at, overflow = from_ms(created_ms + record.ms), None
            if isinstance(record.properties, str):
                properties = {**_ids_of(spec), **codec.value_from_json(record.properties)}
                body, overflow = body_from_properties(EVENT_NAMES[record.type], properties)
            else:
                body = body_of(record, at)
            event = Event(
                entity_type=type_,
                entity_id=spec.id,
                tenant=spec.tenant,
                app=spec.app,
                sequence=sequence,
                at=at,
                body=body,
                context=self._context(record.context),
                overflow=overflow,
            )
            events.append((record.position, event))
        return events

    def _context(self, packed: Any) -> EventContext:
        if isinstance(packed, int):
            if packed > 0:
                return EventContext(origin="worker", worker_id=self._reader.name(packed))
            origin, source = _CONTEXTS[-1 - packed]
            return EventContext(origin=origin, source=source)
        origin, source, worker = packed
        return EventContext(origin=origin, source=source, worker_id=worker)

    def _task_body(
        self, spec: TaskSpec, result: Document | None, record: Record, at: datetime
    ) -> EventBody:
        ids = {"task_id": spec.id, "job_id": spec.job_id}
        if record.type == PENDING:
            round_, due_ms = record.properties
            return e.TaskPending(
                **ids,
                name=spec.definition,
                depends_on=spec.parents,
                round=round_,
                due_at=None if due_ms is None else from_ms(due_ms),
            )
        if record.type == STARTED:
            worker, late_ms, lease_ms, process_id, attempt, fence = record.properties
            started_at = at - timedelta(milliseconds=late_ms)
            return e.TaskProcessingStarted(
                **ids,
                started_at=started_at,
                effective_until=started_at + timedelta(milliseconds=lease_ms),
                worker_id=self._reader.name(worker),
                process_id=process_id,
                attempt_number=attempt,
                fence=fence,
            )
        attempt, duration_ms, exit_code, last_output, usage = record.properties
        return e.TaskCompleted(
            **ids,
            attempt_number=attempt,
            output=result,
            duration=timedelta(milliseconds=duration_ms),
            exit_code=exit_code,
            last_output=last_output,
            usage=Usage(**dict(zip(_USAGE_FIELDS, usage, strict=True))) if usage else NO_USAGE,
        )

    def _job_body(self, spec: JobSpec, job_no: int, record: Record, _: datetime) -> EventBody:
        total, first = record.properties[0], job_no << NUMBER_BITS
        sql = "SELECT key, kind, parents, input FROM tasks WHERE no >= ? AND no < ? ORDER BY no"
        tasks = self._reader.select(sql, (first, first + total))
        if record.type == JOB_COMPLETED:
            statuses: dict[str, str | None] = {key: TaskState.COMPLETED.value for key, *_ in tasks}
            return e.JobCompleted(
                job_id=spec.id,
                total_tasks=total,
                task_statuses=statuses,
                round=record.properties[1],
            )
        summaries = tuple(
            e.TaskSummary(
                key=key,
                name=self._reader.kind(kind).definition,
                depends_on=self._keys(unpack_document(parents)),
                input=unpack_document(input_),
            )
            for key, kind, parents, input_ in tasks
        )
        return e.JobCreated(
            job_id=spec.id, request_id=spec.request_id, tasks=summaries, total_tasks=total
        )

    def _keys(self, document: Document | None) -> tuple[str, ...]:
        if document is None:
            return ()
        text = self._read_blob(document.key) if document.key is not None else document.text
        return tuple(json.loads(text or "[]"))
