"""Every way to damage a history in one place: drop, double, exchange, change a field."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from longshore.audit.store_snapshot import LeaseRecord, StoreSnapshot

_HOUR_US = 3_600_000_000


class Damage(NamedTuple):
    """What was done, and what came of it."""

    what: str  # such as "change Task.round"
    where: str
    snapshot: StoreSnapshot


def only_job(snapshot: StoreSnapshot, job_id: str) -> StoreSnapshot:
    """The evidence of one job."""
    jobs = tuple(job for job in snapshot.jobs if job.id == job_id)
    tasks = tuple(task for task in snapshot.tasks if task.job_id == job_id)
    return replace(
        snapshot,
        jobs=jobs,
        tasks=tasks,
        events=tuple(record for record in snapshot.events if job_id in record.entity),
        output=tuple(record for record in snapshot.output if record.task_id.startswith(job_id)),
        messages=tuple(record for record in snapshot.messages if job_id in (record.task_id or "")),
        blobs=frozenset(key for row in (*jobs, *tasks) for key in row.blobs),
    )


def all_damages(snapshot: StoreSnapshot) -> Iterator[Damage]:
    """Each of them, one at a time."""
    for name in ("jobs", "tasks", "events", "output"):
        records = getattr(snapshot, name)
        for index, record in enumerate(records):
            kind, where = type(record).__name__, _location_of(record)
            rest = (*records[:index], *records[index + 1 :])
            yield Damage(f"drop {kind}", where, replace(snapshot, **{name: rest}))
            yield Damage(f"double {kind}", where, replace(snapshot, **{name: (*records, record)}))
            for what, changed in _changes_of(record):
                all_ = (*records[:index], changed, *records[index + 1 :])
                yield Damage(f"change {what}", where, replace(snapshot, **{name: all_}))
    yield from _swaps(snapshot)
    for key in sorted(snapshot.blobs):
        yield Damage("drop blob", key, replace(snapshot, blobs=snapshot.blobs - {key}))


def _location_of(record: Any) -> str:
    if hasattr(record, "entity"):
        return f"{record.entity} {record.sequence} {record.type}"
    if hasattr(record, "attempt") and hasattr(record, "stream"):
        return f"{record.task_id} {record.attempt}.{record.sequence}"
    return str(record.id)


def _swaps(snapshot: StoreSnapshot) -> Iterator[Damage]:
    """Two events that follow each other change places."""
    by_position = {(event.entity, event.sequence): event for event in snapshot.events}
    for (entity, sequence), first in by_position.items():
        second = by_position.get((entity, sequence + 1))
        if second is not None:
            others = [record for record in snapshot.events if record not in (first, second)]
            swapped = (
                first._replace(
                    sequence=second.sequence, at_us=second.at_us, position=second.position
                ),
                second._replace(
                    sequence=first.sequence, at_us=first.at_us, position=first.position
                ),
            )
            where = f"{entity} {sequence} {first.type} and {second.type}"
            yield Damage("exchange Event", where, replace(snapshot, events=(*others, *swapped)))


def _changes_of(record: Any) -> Iterator[tuple[str, Any]]:
    kind = type(record).__name__
    for field in record._fields:
        value = getattr(record, field)
        if isinstance(value, dict):
            for name, value_at_name in value.items():
                for other in _others(name, value_at_name):
                    what = f"{record.type}.{name}"
                    yield what, record._replace(properties={**value, name: other})
        elif isinstance(value, LeaseRecord):
            yield f"{kind}.lease", record._replace(lease=None)
            for what, lease in _changes_of(value):
                yield what, record._replace(lease=lease)
        else:
            for other in _others(field, value):
                yield f"{kind}.{field}", record._replace(**{field: other})


def _others(name: str, value: Any) -> Iterator[Any]:
    """Values that are not this one: of its kind, and of none."""
    if isinstance(value, bool) or value == ():
        return
    if isinstance(value, int):
        step = _HOUR_US if name.endswith("_us") else 1
        yield from (value + step, value - step, None)
    elif isinstance(value, str):
        yield from (f"{value}x", None)
    elif value is None:
        yield from (1, "odd")
    elif isinstance(value, tuple):
        yield from ((), value[1:], (*value, value[0]))
