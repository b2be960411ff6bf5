"""Malformed data in a store is a violation, never an error of the auditor."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from longshore.audit.audit import audit
from longshore.audit.store_snapshot import EventRecord, LeaseRecord, StoreSnapshot, TaskRecord
from longshore.audit.vocabulary import job_id_of
from tests.audit.conftest import SnapshotPair
from tests.audit.damage import only_job
from tests.audit.forger import Forger
from tests.unit.services.harness import TENANT

MALFORMED_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, -(10**30), 1.5, "", "x", b"x", "\ud800"),
    *((), (1,), ("x",), (None,), ((1, 2),), ((-1,),), [], {}, {"x": 1}, {"round": None}),
    LeaseRecord("w", 1, 1, 1, 1),
    LeaseRecord(None, "x", (), -1, {}),  # type: ignore[arg-type]
)
RECORDS = ("jobs", "tasks", "events", "output", "messages")


@pytest.mark.parametrize("request_id", ["pipeline", "reviewed", "running"])
def test_no_value_in_any_place_makes_it_fail(
    memory_snapshots: SnapshotPair, request_id: str
) -> None:
    evidence = only_job(memory_snapshots.unsettled, job_id_of(TENANT, request_id))
    for name in RECORDS:
        records = getattr(evidence, name)
        for index, record in _first_of_each_type(records):
            for changed in _changed(record):
                odd = replace(
                    evidence, **{name: (*records[:index], changed, *records[index + 1 :])}
                )
                violations = audit(odd)
                assert violations == sorted(violations)


def _first_of_each_type(records: tuple[Any, ...]) -> list[tuple[int, Any]]:
    """The first of each type or state, and its place."""
    kinds = [getattr(record, "type", None) or getattr(record, "state", None) for record in records]
    return [(index, records[index]) for index in sorted(map(kinds.index, set(kinds)))]


def _changed(record: Any) -> Iterator[Any]:
    for odd in MALFORMED_VALUES:
        yield odd
        for field in record._fields:
            yield record._replace(**{field: odd})
        for name in getattr(record, "properties", ()):
            yield record._replace(properties={**record.properties, name: odd})


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("state", "asleep", "no state is called 'asleep'"),
        ("round", None, "its round is None"),
        ("number", -1, "its number is -1"),
        ("number", 1 << 60, "its number is"),
        ("due_us", "soon", "its due is 'soon'"),
        ("parents", (1,), "the list of its parents has 1"),
        ("lease", LeaseRecord("w", 1, 1, "late", 0), "its lease: its until is 'late'"),
    ],
)
def test_a_value_of_a_wrong_type_is_reported(
    memory_snapshots: SnapshotPair, field: str, value: Any, words: str
) -> None:
    forger = Forger(memory_snapshots.settled)
    subject = forger.task("pipeline/a").id
    forger.change_task("pipeline/a", **{field: value})

    texts = [record.text for record in audit(forger.snapshot) if record.subject == subject]

    assert any(f"cannot be understood: {words}" in text for text in texts), texts


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"type": "Task Blessed"}, "none is called 'Task Blessed'"),
        ({"type": "Job Created"}, "Job Created of 'TASK#"),
        ({"type": "Task Health Check"}, "Task Health Check of 'TASK#"),
        ({"properties": {}}, "its task id of Task Pending is None"),
    ],
)
def test_an_unknown_event_type_is_reported(
    memory_snapshots: SnapshotPair, fields: dict[str, Any], words: str
) -> None:
    forger = Forger(memory_snapshots.settled)
    subject = forger.task("pipeline/a").id
    forger.change_event("pipeline/a", 1, **fields)

    texts = [record.text for record in audit(forger.snapshot) if record.subject == subject]

    assert any(words in text for text in texts), texts


def test_a_value_that_is_not_a_record_is_a_violation() -> None:
    violations = audit(
        StoreSnapshot(taken_at_us=0, tasks=(None, "x"), events=(EventRecord, TaskRecord))
    )  # type: ignore[arg-type]

    assert [record.invariant for record in violations] == [5, 5, 5, 5]


def test_nothing_stored_is_nothing_found() -> None:
    assert audit(StoreSnapshot(taken_at_us=0, settled=True)) == []
