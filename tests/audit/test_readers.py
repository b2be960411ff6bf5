"""All backends give the same snapshot of the same data, and damage is found in each."""

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

import longshore.audit
from longshore.audit import memory_reader, sqlite_reader
from longshore.audit.audit import Violation, audit
from longshore.audit.store_snapshot import StoreSnapshot
from longshore.audit.vocabulary import job_id_of
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from tests.audit.conftest import SnapshotPair, record_workload
from tests.unit.services.harness import TENANT

PIPELINE = job_id_of(TENANT, "pipeline")
TASK = f"{PIPELINE}_b"


def changed(folder: Path, sql: str, **names: str) -> None:
    """Damage a data folder."""
    connection = apsw.Connection(str(folder / "longshore.db"))
    connection.execute(sql, {"task": TASK, "entity": f"TASK#{TASK}", "job": PIPELINE, **names})
    assert connection.changes(), sql
    connection.close()


@pytest.fixture
def folder(sqlite_snapshots: SnapshotPair, tmp_path: Path) -> Path:
    """A copy of a data folder, to be damaged."""
    shutil.copytree(
        sqlite_snapshots.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("wakeups")
    )
    return tmp_path / "copy"


def violations_in(folder: Path, like: StoreSnapshot) -> list[Violation]:
    return audit(sqlite_reader.read_snapshot(folder, taken_at_us=like.taken_at_us))


def test_both_backends_give_the_same_evidence(
    memory_snapshots: SnapshotPair, sqlite_snapshots: SnapshotPair
) -> None:
    assert _plain(memory_snapshots.settled) == _plain(sqlite_snapshots.settled)
    assert _plain(memory_snapshots.unsettled) == _plain(sqlite_snapshots.unsettled)


def _plain(snapshot: StoreSnapshot) -> dict[str, Any]:
    """Without what may differ: a fence has the boots that a file has seen in its upper half."""
    tasks = [
        task._replace(
            fence=_lower(task.fence),
            lease=task.lease and task.lease._replace(fence=_lower(task.lease.fence)),
        )
        for task in snapshot.tasks
    ]
    events = [
        event._replace(
            properties={**event.properties, "fence": _lower(event.properties.get("fence") or 0)}
        )
        for event in snapshot.events
    ]
    return {
        "jobs": sorted(snapshot.jobs),
        "tasks": sorted(tasks, key=lambda task: task.id),
        "events": sorted(events, key=lambda event: event.position),
        "output": sorted(snapshot.output),
        "messages": sorted(snapshot.messages, key=str),
        "at": snapshot.taken_at_us,
    }


def _lower(fence: Any) -> int:
    return int(fence) & 0xFFFF_FFFF


class StoredForgery(NamedTuple):
    """One damage, done to the file and to memory."""

    invariant: int
    sql: str
    forge: Callable[[Backend], None]


def _row(**fields: Any) -> Callable[[Backend], None]:
    def forge(backend: Backend) -> None:
        rows = backend.ledger._store.tasks
        rows[TASK] = replace(rows[TASK], **fields)

    return forge


def _job(**fields: Any) -> Callable[[Backend], None]:
    def forge(backend: Backend) -> None:
        rows = backend.ledger._store.jobs
        rows[PIPELINE] = replace(rows[PIPELINE], **fields)

    return forge


def _event(sequence: int, **fields: Any) -> Callable[[Backend], None]:
    """Change what an event of the task says; without a word, drop it."""

    def forge(backend: Backend) -> None:
        events = backend.ledger._store.events
        position = next(
            position
            for position, event in enumerate(events)
            if (event.entity_id, event.sequence) == (TASK, sequence)
        )
        if fields:
            event = events[position]
            events[position] = replace(event, body=replace(event.body, **fields))
        else:
            del events[position]

    return forge


def _output(backend: Backend) -> None:
    entries = backend.output._chunks[TASK]
    del entries[next(position for position in entries if position.attempt == 1)]


def _blobs(backend: Backend) -> None:
    backend.blobs._blobs.clear()


STORED = [
    StoredForgery(1, "DELETE FROM blobs", _blobs),
    StoredForgery(
        2,
        "UPDATE events SET properties = json_set(properties, '$.attemptNumber', 1)"
        " WHERE entity = :entity AND sequence = 4",
        _event(4, attempt_number=1),
    ),
    StoredForgery(
        3,
        "UPDATE events SET properties = json_set(properties, '$.attemptNumber', 1)"
        " WHERE entity = :entity AND sequence = 6",
        _event(6, attempt_number=1),
    ),
    StoredForgery(5, "DELETE FROM events WHERE entity = :entity AND sequence = 3", _event(3)),
    StoredForgery(
        5,
        "UPDATE tasks SET state = 'in_review', body = json_set(body, '$.state', 'in_review')"
        " WHERE id = :task",
        _row(state=TaskState.IN_REVIEW),
    ),
    StoredForgery(
        6,
        "UPDATE tasks SET body = json_set(body, '$.awaits', '1') WHERE id = :task",
        _row(awaits=NumberSet([0])),
    ),
    StoredForgery(
        7,
        "UPDATE jobs SET state = 'failed', body = json_set(body, '$.failed', '2',"
        " '$.completed', 'd') WHERE id = :job",
        _job(failed=NumberSet([1]), completed=NumberSet([0, 2, 3])),
    ),
    StoredForgery(
        8,
        "DELETE FROM output WHERE task_id = :task AND attempt = 1 AND sequence = 1",
        _output,
    ),
    StoredForgery(
        11,
        "UPDATE tasks SET body = json_set(body, '$.attempts_used', 9) WHERE id = :task",
        _row(attempts_used=9),
    ),
    StoredForgery(
        13,
        "UPDATE events SET properties = json_set(properties, '$.jobId', 'x')"
        " WHERE entity = :entity AND sequence = 1",
        _event(1, job_id="x"),
    ),
]


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: f"{stored.invariant}: {stored.sql}")
def test_the_same_damage_gives_the_same_findings(
    folder: Path, tmp_path: Path, sqlite_snapshots: SnapshotPair, stored: StoredForgery
) -> None:
    changed(folder, stored.sql)
    backend = record_workload("atomic memory", tmp_path).backend
    assert backend is not None
    stored.forge(backend)

    in_file = violations_in(folder, sqlite_snapshots.unsettled)
    in_memory = audit(memory_reader.read_snapshot(backend))

    assert stored.invariant in [violation.invariant for violation in in_file]
    assert in_file == in_memory


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE tasks SET state = 'pending' WHERE id = :task", "it is found by state 'pending'"),
        ("UPDATE tasks SET due_us = 5 WHERE id = :task", "it is found by due time 5"),
        (
            "UPDATE tasks SET lease_expires_us = 5 WHERE id = :task",
            "it is found by end of its lease 5",
        ),
        ("UPDATE tasks SET finished_us = NULL WHERE id = :task", "it is found by end None"),
        ("UPDATE tasks SET tenant = 'other' WHERE id = :task", "it is found by tenant 'other'"),
        ("UPDATE jobs SET intents = 1 WHERE id = :job", "number of intents 1"),
        ("UPDATE jobs SET ended = 1 WHERE id = :job", "number of ends 1"),
        ("UPDATE jobs SET end_unreported = 1 WHERE id = :job", "unreported end 1"),
        ("UPDATE jobs SET state = 'running' WHERE id = :job", "state 'running'"),
        ("UPDATE tasks SET body = 'x' WHERE id = :task", "cannot be understood: its state is None"),
        (
            "UPDATE tasks SET spec = '[1]' WHERE id = :task",
            "cannot be understood: its tenant is None",
        ),
        ("UPDATE jobs SET body = '' WHERE id = :job", "its tenant is None"),
        (
            "UPDATE events SET properties = '7' WHERE entity = :entity AND sequence = 2",
            "its task id of Task Processing",
        ),
    ],
)
def test_damage_that_only_a_file_can_have_is_found(
    folder: Path, sqlite_snapshots: SnapshotPair, sql: str, words: str
) -> None:
    changed(folder, sql)

    violations = violations_in(folder, sqlite_snapshots.unsettled)

    assert any(violation.invariant == 5 and words in violation.text for violation in violations), (
        violations
    )


@pytest.mark.parametrize("job_id", ["job-2", "job-m", "job-z"])
def test_parts_of_a_store_have_the_violations_of_the_whole(
    folder: Path, sqlite_snapshots: SnapshotPair, monkeypatch: pytest.MonkeyPatch, job_id: str
) -> None:
    changed(folder, "DELETE FROM events WHERE entity = :entity AND sequence = 3")
    # What has no job: before, between or behind those that have one.
    unknown_task = f"{job_id}_x"
    changed(
        folder,
        "UPDATE events SET entity = :unknown_task WHERE entity = :entity AND sequence > 4",
        unknown_task=f"TASK#{unknown_task}",
    )
    monkeypatch.setattr(sqlite_reader, "_TASKS_PER_CHUNK", 1)

    pieces = list(
        sqlite_reader.read_chunks(folder, taken_at_us=sqlite_snapshots.unsettled.taken_at_us)
    )
    violations = [violation for piece in pieces for violation in audit(piece.snapshot)]

    assert len(pieces) > len(sqlite_snapshots.unsettled.jobs) > 5
    assert sum(piece.jobs for piece in pieces) == sqlite_reader.count_rows(folder).jobs
    assert sorted(violations) == violations_in(folder, sqlite_snapshots.unsettled)
    assert any(violation.subject == unknown_task for violation in violations)


def test_a_large_document_whose_file_is_gone_is_missing(
    folder: Path, sqlite_snapshots: SnapshotPair
) -> None:
    changed(folder, "UPDATE blobs SET file = 'ab12', data = NULL WHERE key LIKE '%result-2.json'")

    violations = violations_in(folder, sqlite_snapshots.unsettled)
    (folder / "blobs" / "ab").mkdir(parents=True)
    (folder / "blobs" / "ab" / "ab12").touch()

    assert {violation.invariant for violation in violations} == {1}
    assert violations_in(folder, sqlite_snapshots.unsettled) == []


def test_an_audit_sees_one_moment_and_waits_for_no_writer(
    folder: Path, sqlite_snapshots: SnapshotPair
) -> None:
    writer = apsw.Connection(str(folder / "longshore.db"))
    writer.execute("BEGIN IMMEDIATE; DELETE FROM events")

    assert violations_in(folder, sqlite_snapshots.unsettled) == []
    writer.execute("ROLLBACK")
    writer.close()


def test_an_audit_changes_nothing(folder: Path, sqlite_snapshots: SnapshotPair) -> None:
    before = (folder / "longshore.db").read_bytes()

    violations_in(folder, sqlite_snapshots.unsettled)
    list(sqlite_reader.read_chunks(folder))

    assert (folder / "longshore.db").read_bytes() == before


# How bytes are packed, and nothing of what they say.
MAY_SHARE_VIOLATIONS = ("longshore.adapters.aws.attributes",)


def test_the_auditor_shares_no_code_with_what_it_checks() -> None:
    (position,) = longshore.audit.__path__
    for path in sorted(Path(position).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            strange = [
                name
                for name in names
                if name.startswith("longshore")
                and not name.startswith(longshore.audit.__name__)
                and name not in MAY_SHARE_VIOLATIONS
            ]
            assert strange == [], path
