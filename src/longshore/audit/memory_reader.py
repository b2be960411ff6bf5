"""The evidence that a memory backend holds.

Read straight from where its adapters keep things: a simulation audits thousands of runs, and asking
the ports would cost more than the run. Only attributes are read, nothing of ``core`` is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.audit.store_snapshot import (
    EventRecord,
    FieldValue,
    IntentRecord,
    JobRecord,
    LeaseRecord,
    MessageRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)
from longshore.audit.vocabulary import BLOB, EVENTS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def read_snapshot(
    backend: Any, *, settled: bool = False, commit_position: Callable[[Any], int] | None = None
) -> StoreSnapshot:
    """All that a backend from ``memory_backend`` has stored so far.

    Args:
        backend: The one with the adapters themselves, without anything before them.
        settled: Whether the run has come to rest with healthy workers.
        order: The place of an event in the order of commits; None: as they were recorded.
    """
    store = backend.ledger._store
    blobs: dict[str, bytes] = backend.blobs._blobs
    return StoreSnapshot(
        taken_at_us=_us(backend.clock.now()),
        jobs=tuple([_job(row, blobs) for row in store.jobs.values()]),
        tasks=tuple([_task(row, blobs) for row in store.tasks.values()]),
        events=tuple(
            [
                _event(commit_position(event) if commit_position else position, event)
                for position, event in enumerate(store.events, start=1)
                if event is not None
            ]
        ),
        output=tuple(_output(backend.output._chunks)),
        messages=() if backend.queue is None else tuple(_messages(backend.queue)),
        blobs=frozenset(blobs),
        settled=settled,
        removed=frozenset(store.removed),
    )


def _us(moment: datetime) -> int:
    past = moment - _EPOCH
    return (past.days * 86_400 + past.seconds) * 1_000_000 + past.microseconds


def _maybe_us(moment: datetime | None) -> int | None:
    return None if moment is None else _us(moment)


def _bits(numbers: Any) -> int:
    return int(numbers.to_text() or "0", 16)


def _text(document: Any) -> str | None:
    """A document in a word: its JSON, or where it is kept."""
    if document is None:
        return None
    text: str | None = document.text
    return f"{BLOB}{document.key}" if text is None else text


def _keys_of(*documents: Any) -> tuple[str, ...]:
    return tuple(
        [
            document.key
            for document in documents
            if document is not None and document.key is not None
        ]
    )


def _load(document: Any, blobs: dict[str, bytes]) -> Any:
    """What a document holds; None if it is not there or is no JSON."""
    if document is None:
        return None
    text = document.text if document.key is None else blobs.get(document.key)
    try:
        return json.loads(text or b"")
    except ValueError:
        return None


def _task(row: Any, blobs: dict[str, bytes]) -> TaskRecord:
    spec, lease = row.spec, row.lease
    parents = _load(spec.parents, blobs) if spec.parents is not None else ()
    named = _keys_of(spec.input, spec.parents, spec.dependents, row.result, row.previous_result)
    return TaskRecord(
        id=spec.id,
        tenant=spec.tenant,
        job_id=spec.job_id,
        key=spec.key,
        number=spec.number,
        queue=spec.queue,
        state=row.state.value,
        version=row.version,
        round=row.round,
        attempt=row.attempt,
        attempts_used=row.attempts_used,
        max_attempts=spec.retry.max_attempts,
        rate_limit_wait_us=spec.retry.rate_limit_wait // _MICROSECOND,
        fence=row.fence,
        revision=row.revision,
        last_sequence=row.last_sequence,
        awaits=_bits(row.awaits),
        lease=lease
        and LeaseRecord(
            worker_id=lease.worker_id,
            fence=lease.fence,
            since_us=_us(lease.acquired_at),
            until_us=_us(lease.expires_at),
            heartbeats=lease.heartbeats,
        ),
        not_before_us=_maybe_us(spec.not_before),
        due_us=_maybe_us(row.due_at),
        started_us=_maybe_us(row.started_at),
        finished_us=_maybe_us(row.finished_at),
        cancel_us=_us(row.cancel.at) if row.cancel else None,
        last_event_us=_maybe_us(row.last_event_at),
        last_output=row.last_output,
        result=_text(row.result),
        failure=row.failure.category.value if row.failure else None,
        parents=tuple(parents or ()),
        blobs=named if row.checkpoint is None else (*named, row.checkpoint),
    )


def _job(row: Any, blobs: dict[str, bytes]) -> JobRecord:
    spec = row.spec
    graph = _load(row.graph, blobs)
    bodies = [intent.body for intent in row.intents]
    return JobRecord(
        id=spec.id,
        tenant=spec.tenant,
        request_id=spec.request_id,
        version=row.version,
        total=row.total,
        round=row.round,
        completed=_bits(row.completed),
        failed=_bits(row.failed),
        cancelled=_bits(row.cancelled),
        blocked=_bits(row.blocked),
        failure_emitted_round=row.failure_emitted_round,
        end_emitted_round=row.end_emitted_round,
        last_sequence=row.last_sequence,
        last_event_us=_maybe_us(row.last_event_at),
        cancel_us=_us(row.cancel.at) if row.cancel else None,
        finished_us=_maybe_us(row.finished_at),
        intents=tuple(
            [
                IntentRecord(
                    kind=intent.kind.value, numbers=_bits(intent.numbers), round=intent.round
                )
                for intent in row.intents
            ]
        ),
        keys=tuple(graph["keys"]) if graph else None,
        parents=tuple([tuple(parents) for parents in graph["parents"]]) if graph else (),
        blobs=_keys_of(row.graph, *bodies),
    )


def _event(position: int, event: Any) -> EventRecord:
    body, overflow = event.body, event.overflow
    says: dict[str, FieldValue] = {}
    for name, attribute, read in _READERS.get(body.TYPE, ()):
        value = getattr(body, attribute, None)
        says[name] = value if read is None or value is None else read(value)
    blobs: tuple[str, ...] = ()
    if overflow is not None:
        blobs = (overflow,)
        if "tasks" in says:
            says["tasks"] = None
    elif "output" in says and says["output"] is not None:
        blobs = _keys_of(body.output)
    return EventRecord(
        position,
        # The enum's text by the shortest way: this is done for each event of each run.
        f"{event.entity_type._value_}#{event.entity_id}",
        event.tenant,
        event.sequence,
        body.TYPE,
        _us(event.at),
        event.context.origin,
        says,
        blobs,
    )


def _reader(name: str) -> Any:
    if name == "elapsed_us":
        return lambda duration: duration // _MICROSECOND
    if name == "retry_after_us":
        return lambda wait: None if wait is None else wait // _MICROSECOND
    if name.endswith("_us"):
        return _us
    return _text if name == "output" else None


# By event type: what it is called here, the attribute it is read from, and how.
_READERS = {
    type_: tuple((name, name.removesuffix("_us"), _reader(name)) for name in schema)
    for type_, schema in EVENTS.items()
}


def _output(entries: Any) -> Iterator[OutputRecord]:
    for task_id, by_position in entries.items():
        for entry in by_position.values():
            stream = entry.stream.value
            yield OutputRecord(task_id, entry.attempt, entry.sequence, stream, entry.last)


def _messages(queue: Any) -> Iterator[MessageRecord]:
    for lane in queue._lanes.values():
        for queued in lane.values():
            sent = queued.outgoing
            yield MessageRecord(sent.queue, sent.merge_key, _task_id_in(sent.body))
    for message in queue._dead.values():
        yield MessageRecord(message.queue, None, _task_id_in(message.body), dead=1)


def _task_id_in(body: str) -> str | None:
    """The task that a message asks to look at."""
    try:
        named = json.loads(body)["requestId"]
    except (ValueError, TypeError, KeyError):
        return None
    return named if isinstance(named, str) else None
