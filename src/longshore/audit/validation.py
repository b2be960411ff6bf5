"""Malformed data: it is reported and removed here, so that the checks need not expect it.

Problems of a single value are reported here; the checks compare values with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from longshore.audit import vocabulary as v
from longshore.audit.store_snapshot import (
    EventRecord,
    IntentRecord,
    JobRecord,
    LeaseRecord,
    MessageRecord,
    OutputRecord,
    StoreSnapshot,
    TaskRecord,
)
from longshore.audit.violation import Violation

# More tasks than any job has: a larger number would only make the auditor's bit sets explode.
_NUMBERS_BELOW = 1 << 20
_SHOWN_CHARACTERS = 60


class _Field(NamedTuple):
    name: str
    kinds: v.Kinds


def drop_malformed(store: StoreSnapshot) -> tuple[StoreSnapshot, list[Violation]]:
    """The snapshot without unreadable data, and the violations for that data."""
    violations: list[Violation] = []
    sound = {
        name: _well_formed(kind, getattr(store, name), violations)
        for name, kind in _RECORD_TYPES.items()
    }
    if not violations:
        return store, violations
    fields = {name: getattr(store, name) for name in StoreSnapshot.__dataclass_fields__}
    return StoreSnapshot(**{**fields, **sound}), violations


_RECORD_TYPES = {
    "jobs": JobRecord,
    "tasks": TaskRecord,
    "events": EventRecord,
    "output": OutputRecord,
    "messages": MessageRecord,
}


def _well_formed(
    kind: type, records: Iterable[Any], violations: list[Violation]
) -> tuple[Any, ...]:
    valid = []
    for record in records:
        problem = _problem(record, kind)
        if problem is None:
            valid.append(record)
        else:
            violations.append(Violation(5, _name_of(record), f"cannot be understood: {problem}"))
    return tuple(valid)


def _name_of(record: Any) -> str:
    for name in ("id", "entity", "task_id", "key"):
        value = getattr(record, name, None)
        if isinstance(value, str) and value:
            return value.partition("#")[2] if name == "entity" and "#" in value else value
    return type(record).__name__.lower()


def _problem(record: Any, kind: type) -> str | None:
    record_type = type(record)
    if record_type is not kind:
        return f"{_shown(record)} is no record"
    # Records come in few shapes, and one that was looked at before is known.
    shape = (kind, *map(type, record))
    if shape not in _seen_shapes:
        for field, value in zip(_FIELDS[kind], record, strict=True):
            if type(value) not in field.kinds:
                return f"{_label(field.name)} is {_shown(value)}"
        _seen_shapes.add(shape)
    more = _EXTRA_CHECKS.get(kind)
    return more(record) if more else None


_seen_shapes: set[tuple[type, ...]] = set()


def _first_problem(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem), None)


def _text_problem(name: str, values: tuple[object, ...]) -> str | None:
    return _first_problem(
        f"{name} has {_shown(value)}" for value in values if type(value) is not str
    )


def _task_problem(task: TaskRecord) -> str | None:
    if task.state not in v.STATES:
        return f"no state is called {_shown(task.state)}"
    if not 0 <= task.number < _NUMBERS_BELOW:
        return f"its number is {task.number}"
    if task.lease is not None and (problem := _problem(task.lease, LeaseRecord)):
        return f"its lease: {problem}"
    if task.parents or task.blobs:
        return _text_problem("the list of its parents", task.parents) or _blob_problem(task.blobs)
    return None


def _blob_problem(blobs: tuple[object, ...]) -> str | None:
    return _text_problem("the list of its documents", blobs)


def _job_problem(job: JobRecord) -> str | None:
    if not 0 <= job.total < _NUMBERS_BELOW:
        return f"its number of tasks is {job.total}"
    for name in ("completed", "failed", "cancelled", "blocked"):
        if getattr(job, name) < 0:
            return f"{_label(name)} is no set"
    if problem := _first_problem(_problem(intent, IntentRecord) for intent in job.intents):
        return f"an intent: {problem}"
    return _blob_problem(job.blobs) or (
        _graph_problem(job, job.keys) if job.keys is not None else None
    )


def _graph_problem(job: JobRecord, keys: tuple[str, ...]) -> str | None:
    count = len(keys)
    if problem := _text_problem("its graph", keys):
        return problem
    if len(job.parents) != count or len(set(keys)) != count:
        return "the lists of its graph do not fit each other"
    for number, parents in enumerate(job.parents):
        for parent in parents if type(parents) is tuple else (None,):
            if type(parent) is not int or not 0 <= parent < count or parent == number:
                return f"in its graph, task {number} has parents {_shown(parents)}"
    return None


def _intent_problem(intent: IntentRecord) -> str | None:
    return None if intent.kind in v.INTENTS else f"none is called {_shown(intent.kind)}"


def _event_problem(event: EventRecord) -> str | None:
    says = event.properties
    shape = (event.type, event.entity.partition("#")[0], *says, *map(type, says.values()))
    if shape not in _seen_event_shapes:
        problem = _properties_problem(event)
        if problem:
            return f"event {event.sequence}: {problem}"
        _seen_event_shapes.add(shape)
    if names := says.get("tasks"):
        return (
            _text_problem("its tasks", names) if type(names) is tuple else "its tasks are no list"
        )
    return _blob_problem(event.blobs) if event.blobs else None


_seen_event_shapes: set[tuple[object, ...]] = set()


def _properties_problem(event: EventRecord) -> str | None:
    """What is wrong with the words of an event."""
    entity = event.entity.partition("#")[0]
    if event.type in v.OTHER_EVENTS:
        return None if entity in v.OTHER_ENTITIES else f"{event.type} of {_shown(event.entity)}"
    schema = v.EVENTS.get(event.type)
    if schema is None:
        return f"none is called {_shown(event.type)}"
    if entity != event.type.partition(" ")[0].upper():
        return f"{event.type} of {_shown(event.entity)}"
    for name, kinds in schema.items():
        if type(event.properties.get(name)) not in kinds:
            return f"{_label(name)} of {event.type} is {_shown(event.properties.get(name))}"
    return None


_EXTRA_CHECKS: dict[type, Callable[[Any], str | None]] = {
    TaskRecord: _task_problem,
    JobRecord: _job_problem,
    IntentRecord: _intent_problem,
    EventRecord: _event_problem,
}


def _label(name: str) -> str:
    return f"its {name.removesuffix('_us').replace('_', ' ')}"


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}…"


def _fields_of(kind: type) -> tuple[_Field, ...]:
    return tuple(_field(name, hint) for name, hint in get_type_hints(kind).items())


def _field(name: str, hint: Any) -> _Field:
    choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return _Field(name, frozenset(get_origin(value) or value for value in choices))


_FIELDS = {
    kind: _fields_of(kind)
    for kind in (
        TaskRecord,
        LeaseRecord,
        JobRecord,
        IntentRecord,
        EventRecord,
        OutputRecord,
        MessageRecord,
    )
}
