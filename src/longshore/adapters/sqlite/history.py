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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import apsw
import msgspec

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.names import Names
from longshore.adapters.sqlite.rows import (
    JOB_COLUMNS,
    NUMBER_BITS,
    TASK_COLUMNS,
    from_ms,
    to_ms,
    unpack_document,
    unpack_id,
    unpack_job_id,
)
from longshore.adapters.sqlite.store_file import rows
from longshore.core.documents import Document
from longshore.core.events import types as e
from longshore.core.events.codec import body_from_properties, properties_of
from longshore.core.events.event import Event, EventContext
from longshore.core.events.types import NO_USAGE, EntityType, EventBody, Usage
from longshore.core.ids import REQUEST_PREFIX, task_id_of
from longshore.core.tasks.rows import JobRow, TaskRow
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
_MILLISECOND = timedelta(milliseconds=1)
_USAGE_FIELDS = tuple(item.name for item in fields(Usage))
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_TASK = {name: index for index, name in enumerate(TASK_COLUMNS)}
_JOB = {name: index for index, name in enumerate(JOB_COLUMNS)}


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
    context = event.context
    packed: Any = _CONTEXT_NUMBERS.get((context.origin, context.source))
    if context.worker_id is not None:
        if (context.origin, context.source) == ("worker", "system"):
            packed = number_of(context.worker_id)
        else:
            packed = None
    if packed is None:
        packed = (context.origin, context.source, context.worker_id)
    properties = None
    if event.overflow is None or tasks_stored:
        properties = _compact_properties(event, row, number_of, tasks_stored=tasks_stored)
    if properties is None:
        properties = _json_properties(event)
    ms = to_ms(event.at) - to_ms(row.spec.created_at)
    return pack_record(EVENT_NUMBERS[event.type], ms, position, packed, properties)


def _json_properties(event: Event) -> str:
    properties = properties_of(event)
    body = event.body
    if isinstance(body, e.TaskEvent) and body.task_id == event.entity_id:
        del properties["requestId"], properties["jobId"]
    elif isinstance(body, e.JobEvent) and body.job_id == event.entity_id:
        del properties["jobId"]
    return codec.to_json(properties)


def _compact_properties(
    event: Event, row: TaskRow | JobRow, number_of: Callable[[str], int], *, tasks_stored: bool
) -> Any:
    """The values that the row does not have; None: the properties must be stored as they are."""
    body = event.body
    if isinstance(row, TaskRow):
        spec = row.spec
        if not isinstance(body, e.TaskEvent) or (body.task_id, body.job_id) != (
            spec.id,
            spec.job_id,
        ):
            return None
        if isinstance(body, e.TaskPending):
            if (body.name, body.depends_on) != (spec.definition, spec.parents):
                return None
            return (body.round, None if body.due_at is None else to_ms(body.due_at))
        if isinstance(body, e.TaskProcessingStarted):
            return pack_started(
                number_of(body.worker_id),
                to_ms(event.at),
                started_ms=to_ms(body.started_at),
                until_ms=to_ms(body.effective_until),
                process_id=body.process_id,
                attempt=body.attempt_number,
                fence=body.fence,
            )
        if isinstance(body, e.TaskCompleted):
            if row.state is not TaskState.COMPLETED or body.output != row.result:
                return None
            usage = None
            if body.usage != NO_USAGE:
                usage = tuple(getattr(body.usage, name) for name in _USAGE_FIELDS)
            return (
                body.attempt_number,
                body.duration // _MILLISECOND,
                body.exit_code,
                body.last_output,
                usage,
            )
        return None
    if not tasks_stored or not isinstance(body, e.JobEvent) or body.job_id != row.id:
        return None
    if (
        isinstance(body, e.JobCompleted)
        and len(body.task_statuses) == body.total_tasks == row.total
        and set(body.task_statuses.values()) <= {TaskState.COMPLETED.value}
    ):
        return (body.total_tasks, body.round)
    return None


def pack_started(
    worker: int,
    at_ms: int,
    *,
    started_ms: int,
    until_ms: int,
    process_id: int,
    attempt: int,
    fence: int,
) -> tuple[int, ...]:
    """The values of ``Task Processing Started``."""
    return (worker, at_ms - started_ms, until_ms - started_ms, process_id, attempt, fence)


class HistoryReader:
    """Reads packed events; the connection is for what the events do not repeat.

    Args:
        read_blob: Returns the bytes of a blob.
    """

    def __init__(
        self, names: Names, connection: apsw.Connection, read_blob: Callable[[str], bytes]
    ) -> None:
        self._names = names
        self._connection = connection
        self._read_blob = read_blob

    def of_task(self, values: Sequence[Any], only: int | None = None) -> list[tuple[int, Event]]:
        """The events of a task, each with its position, from the values of ``SELECT_TASK``.

        Args:
            only: The sequence of the only event to return.
        """
        job_id = unpack_job_id(values[-1])
        kind = self._names.kind(self._connection, values[_TASK["kind"]])
        row = _TaskContext(
            task_id_of(job_id, values[_TASK["key"]]),
            job_id,
            kind.definition,
            unpack_document(values[_TASK["parents"]]),
            unpack_document(values[_TASK["result"]]),
        )

        def body_of(record: Record, at: datetime) -> tuple[EventBody, str | None]:
            return self._task_body(record, at, row)

        entity = _Entity(EntityType.TASK, row.id, kind.app, values[_TASK["no"]])
        return self._events(entity, dict(zip(_TASK, values, strict=False)), body_of, only)

    def of_job(self, values: Sequence[Any], only: int | None = None) -> list[tuple[int, Event]]:
        """The events of a job, each with its position, from the values of ``SELECT_JOB``.

        Args:
            only: The sequence of the only event to return.
        """
        no, job_id = values[_JOB["no"]], unpack_job_id(values[_JOB["id"]])
        request_id = unpack_id(REQUEST_PREFIX, values[_JOB["request_id"]])

        def body_of(record: Record, _: datetime) -> tuple[EventBody, str | None]:
            return self._job_body(record, no, job_id, request_id)

        app = self._names.text_of(self._connection, values[_JOB["app"]])
        entity = _Entity(EntityType.JOB, job_id, app, -no)
        return self._events(entity, dict(zip(_JOB, values, strict=True)), body_of, only)

    def _events(
        self,
        entity: _Entity,
        columns: Mapping[str, Any],
        body_of: Callable[[Record, datetime], tuple[EventBody, str | None]],
        only: int | None,
    ) -> list[tuple[int, Event]]:
        sql = "SELECT body FROM history_segments WHERE entity = ? ORDER BY first_sequence"
        parts = [body for (body,) in rows(self._connection, sql, (entity.number,))]
        records = [
            record for part in (*parts, columns["history"]) for record in unpack_records(part)
        ]
        tenant = self._names.text_of(self._connection, columns["tenant"])
        created_ms, first = columns["created_us"] // 1000, columns["sequence"] - len(records) + 1
        events = []
        for sequence, record in enumerate(records, first):
            if only not in (None, sequence):
                continue
            at = from_ms(created_ms + record.ms)
            body, overflow = body_of(record, at)
            event = Event(
                entity_type=entity.type,
                entity_id=entity.id,
                tenant=tenant,
                app=entity.app,
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
                worker_id = self._names.text_of(self._connection, packed)
                return EventContext(origin="worker", worker_id=worker_id)
            origin, source = _CONTEXTS[-1 - packed]
            return EventContext(origin=origin, source=source)
        origin, source, worker = packed
        return EventContext(origin=origin, source=source, worker_id=worker)

    def _task_body(
        self, record: Record, at: datetime, row: _TaskContext
    ) -> tuple[EventBody, str | None]:
        values = record.properties
        ids = {"task_id": row.id, "job_id": row.job_id}
        if isinstance(values, str):
            return _json_body(record, {"requestId": row.id, "jobId": row.job_id})
        if record.type == PENDING:
            round_, due_ms = values
            return e.TaskPending(
                **ids,
                name=row.definition,
                depends_on=row.parents,
                round=round_,
                due_at=None if due_ms is None else from_ms(due_ms),
            ), None
        if record.type == STARTED:
            worker, late_ms, lease_ms, process_id, attempt, fence = values
            started_at = at - timedelta(milliseconds=late_ms)
            return e.TaskProcessingStarted(
                **ids,
                started_at=started_at,
                effective_until=started_at + timedelta(milliseconds=lease_ms),
                worker_id=self._names.text_of(self._connection, worker),
                process_id=process_id,
                attempt_number=attempt,
                fence=fence,
            ), None
        attempt, duration_ms, exit_code, last_output, usage = values
        return e.TaskCompleted(
            **ids,
            attempt_number=attempt,
            output=row.result,
            duration=timedelta(milliseconds=duration_ms),
            exit_code=exit_code,
            last_output=last_output,
            usage=NO_USAGE
            if usage is None
            else Usage(**dict(zip(_USAGE_FIELDS, usage, strict=True))),
        ), None

    def _job_body(
        self, record: Record, job_no: int, job_id: str, request_id: str
    ) -> tuple[EventBody, str | None]:
        values = record.properties
        if isinstance(values, str):
            return _json_body(record, {"jobId": job_id})
        total = values[0]
        first = job_no << NUMBER_BITS
        tasks = rows(
            self._connection,
            "SELECT key, kind, parents, input FROM tasks WHERE no >= ? AND no < ? ORDER BY no",
            (first, first + total),
        )
        if record.type == JOB_COMPLETED:
            statuses: dict[str, str | None] = dict.fromkeys(
                [task[0] for task in tasks], TaskState.COMPLETED.value
            )
            return e.JobCompleted(
                job_id=job_id, total_tasks=total, task_statuses=statuses, round=values[1]
            ), None
        summaries = tuple(
            e.TaskSummary(
                key=key,
                name=self._names.kind(self._connection, kind).definition,
                depends_on=self._keys(unpack_document(parents)),
                input=unpack_document(input_),
            )
            for key, kind, parents, input_ in tasks
        )
        return e.JobCreated(
            job_id=job_id, request_id=request_id, tasks=summaries, total_tasks=total
        ), None

    def _keys(self, document: Document | None) -> tuple[str, ...]:
        if document is None:
            return ()
        text = self._read_blob(document.key) if document.key is not None else document.text
        return tuple(json.loads(text or "[]"))


class _Entity(NamedTuple):
    """The task or job that has a history."""

    type: EntityType
    id: str
    app: str
    number: int  # of the task, or the negated number of the job


class _TaskContext(NamedTuple):
    """What the events of a task do not repeat."""

    id: str
    job_id: str
    definition: str
    parents: Document | None
    result: Document | None


def _json_body(record: Record, ids: dict[str, str]) -> tuple[EventBody, str | None]:
    properties = codec.value_from_json(record.properties)
    return body_from_properties(EVENT_NAMES[record.type], {**ids, **properties})
