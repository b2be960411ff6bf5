"""All backends give the same snapshot of the same data, and damage is found in each."""
# ruff: noqa: S608 - the statements are made of constants of this module

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec
import pytest

import longshore.audit
from longshore.audit import memory_reader, sqlite_reader
from longshore.audit.audit import Violation, audit
from longshore.audit.sqlite_rows import records_in
from longshore.audit.store_snapshot import StoreSnapshot
from longshore.audit.vocabulary import job_id_of
from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from tests.audit.conftest import SnapshotPair, record_workload
from tests.unit.services.harness import TENANT

PIPELINE = job_id_of(TENANT, "pipeline")
TASK = f"{PIPELINE}_b"  # the task with the number 1


DIGITS = "0123456789abcdefghijklmnopqrstuv"
OF_TASK = "no = (SELECT no FROM jobs WHERE id = :job) << 20 | 1"
OF_JOB = "id = :job"
STARTED = 2  # the number of Task Processing Started
Packed = list[Any]
Forge = Callable[[apsw.Connection], None]


def changed(folder: Path, *changes: str | Forge) -> None:
    """Damage a data folder."""
    connection = apsw.Connection(str(folder / "longshore.db"))
    for change in changes:
        before = connection.total_changes()
        if isinstance(change, str):
            connection.execute(change, {"job": packed_id(PIPELINE)})
        else:
            change(connection)
        assert connection.total_changes() > before, change
    connection.close()


def packed_id(job_id: str) -> bytes:
    """The bytes of a job id."""
    number = 0
    for digit in job_id.removeprefix("job-"):
        number = number * 32 + DIGITS.index(digit)
    return number.to_bytes(15, "big")


def packed(record: Packed) -> bytes:
    """A record of a history: its length, and its five parts."""
    data = msgspec.msgpack.encode(record)
    if len(data) < 255:
        return bytes([len(data)]) + data
    return b"\xff" + len(data).to_bytes(4, "little") + data


def unpacked(history: bytes) -> list[Packed]:
    """The records of a history."""
    return [list(record) for record in records_in(history)[0]]


def repacked(change: Callable[[list[Packed]], None], table: str = "tasks") -> Forge:
    """Change the packed events of the task, or of its job."""
    where = OF_TASK if table == "tasks" else OF_JOB

    def forge(connection: apsw.Connection) -> None:
        values = {"job": packed_id(PIPELINE)}
        sql = f"SELECT history FROM {table} WHERE {where}"
        ((history,),) = connection.execute(sql, values).fetchall()
        records = unpacked(history)
        change(records)
        connection.execute(
            f"UPDATE {table} SET history = :history WHERE {where}",
            {**values, "history": b"".join(map(packed, records))},
        )

    return forge


def with_values(sequence: int, values: Any) -> Forge:
    """Replace the values of one event of the task."""
    return with_part(sequence, 4, values)


def with_value(sequence: int, index: int, value: Any) -> Forge:
    """Replace one value of one event of the task."""

    def change(records: list[Packed]) -> None:
        records[sequence - 1][4][index] = value

    return repacked(change)


def with_part(sequence: int, index: int, value: Any) -> Forge:
    """Replace one of the five parts of one event of the task."""

    def change(records: list[Packed]) -> None:
        records[sequence - 1][index] = value

    return repacked(change)


def without_event(sequence: int) -> Forge:
    """Remove one event of the task."""
    return repacked(lambda records: records.pop(sequence - 1) and None)


def refed(sequence: int, change: Callable[[Packed], None]) -> Forge:
    """Change the row of the feed that has one event of the task."""

    def forge(connection: apsw.Connection) -> None:
        values = {"job": packed_id(PIPELINE)}
        sql = f"SELECT history FROM tasks WHERE {OF_TASK}"
        ((history,),) = connection.execute(sql, values).fetchall()
        position = unpacked(history)[sequence - 1][2]
        sql = "SELECT entries FROM feed WHERE position = ?"
        ((data,),) = connection.execute(sql, (position,)).fetchall()
        groups = msgspec.msgpack.decode(data)
        change(groups)
        connection.execute(
            "UPDATE feed SET entries = ? WHERE position = ?",
            (msgspec.msgpack.encode(groups), position),
        )

    return forge


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
    """Without what may differ: positions, and the boots of a file in the upper half of fences."""
    tasks = [
        task._replace(
            fence=_lower(task.fence),
            lease=task.lease and task.lease._replace(fence=_lower(task.lease.fence)),
        )
        for task in snapshot.tasks
    ]
    events = [
        event._replace(
            position=0,
            properties={**event.properties, "fence": _lower(event.properties.get("fence") or 0)},
        )
        for event in snapshot.events
    ]
    return {
        "jobs": sorted(snapshot.jobs),
        "tasks": sorted(tasks, key=lambda task: task.id),
        "events": sorted(events, key=lambda event: (event.entity, event.sequence)),
        "output": sorted(snapshot.output),
        "messages": sorted(snapshot.messages, key=str),
        "at": snapshot.taken_at_us,
    }


def _lower(fence: Any) -> int:
    return int(fence) & 0xFFFF_FFFF


class StoredForgery(NamedTuple):
    """One damage, done to the file and to memory."""

    invariant: int
    change: str | Forge
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
    StoredForgery(2, with_value(4, 4, 1), _event(4, attempt_number=1)),
    StoredForgery(3, with_value(6, 0, 1), _event(6, attempt_number=1)),
    StoredForgery(
        5,
        f"UPDATE tasks SET state = 3 WHERE {OF_TASK}",
        _row(state=TaskState.IN_REVIEW),
    ),
    StoredForgery(
        6, f"UPDATE tasks SET awaits = x'01' WHERE {OF_TASK}", _row(awaits=NumberSet([0]))
    ),
    StoredForgery(
        7,
        """UPDATE jobs SET state = 2, completed = x'0d', rest = '{"failed":"2",'"""
        f""" || '"end_emitted_round":1}}' WHERE {OF_JOB}""",
        _job(failed=NumberSet([1]), completed=NumberSet([0, 2, 3])),
    ),
    StoredForgery(
        8,
        f"DELETE FROM output WHERE {OF_TASK.replace('no', 'task', 1)}"
        " AND attempt = 1 AND sequence = 1",
        _output,
    ),
    StoredForgery(
        11,
        f"UPDATE tasks SET rest = json_set(rest, '$.attempts_used', 9) WHERE {OF_TASK}",
        _row(attempts_used=9),
    ),
    StoredForgery(
        13,
        with_values(1, '{"jobId":"x","name":"shell","dependsOn":["a"],"round":1}'),
        _event(1, job_id="x"),
    ),
]


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: str(stored.invariant))
def test_the_same_damage_gives_the_same_findings(
    folder: Path, tmp_path: Path, sqlite_snapshots: SnapshotPair, stored: StoredForgery
) -> None:
    changed(folder, stored.change)
    backend = record_workload("atomic memory", tmp_path).backend
    assert backend is not None
    stored.forge(backend)

    in_file = violations_in(folder, sqlite_snapshots.unsettled)
    in_memory = audit(memory_reader.read_snapshot(backend))

    assert stored.invariant in [violation.invariant for violation in in_file]
    assert in_file == in_memory


NOT_IN_FEED = "is not in the feed at the position that it names"
ONLY_IN_FILES: list[tuple[str, str | Forge, str]] = [
    ("state", f"UPDATE tasks SET state = 1 WHERE {OF_TASK}", "it is pending and never due"),
    ("unknown state", f"UPDATE tasks SET state = 99 WHERE {OF_TASK}", "its state is 99"),
    ("lease", f"UPDATE tasks SET lease_ms = 5 WHERE {OF_TASK}", "lease"),
    ("end", f"UPDATE tasks SET finished_ms = NULL WHERE {OF_TASK}", "ended without a time"),
    ("queue", f"UPDATE tasks SET queue = 1 WHERE {OF_TASK}", "it is found by queue 'acme'"),
    ("lane", f"UPDATE tasks SET lane = 0 WHERE {OF_TASK}", "it is found by lane 0"),
    ("due", f"""UPDATE tasks SET rest = '{{"due_at":5}}' WHERE {OF_TASK}""", "due time None"),
    ("tenant", f"UPDATE tasks SET tenant = 6 WHERE {OF_TASK}", NOT_IN_FEED),
    ("kind", f"UPDATE tasks SET kind = 99 WHERE {OF_TASK}", "it is found by queue 'default'"),
    ("version", f"UPDATE tasks SET version = 0 WHERE {OF_TASK}", "version"),
    ("sequence", f"UPDATE tasks SET sequence = 7 WHERE {OF_TASK}", "7"),
    ("intents", f"UPDATE jobs SET intents = 1 WHERE {OF_JOB}", "number of intents 1"),
    ("unreported", f"UPDATE jobs SET unreported = 1 WHERE {OF_JOB}", "unreported end 1"),
    (
        "job state",
        f"UPDATE jobs SET state = 0 WHERE {OF_JOB}",
        "it is running and has a time of its end",
    ),
    ("total", f"UPDATE jobs SET total = -1 WHERE {OF_JOB}", "its number of tasks is -1"),
    ("graph", f"UPDATE jobs SET graph = 'x' WHERE {OF_JOB}", "graph"),
    ("rest", f"UPDATE tasks SET rest = '[1]' WHERE {OF_TASK}", "attempts"),
    (
        "unsettled",
        f"UPDATE jobs SET state = 0, completed = x'0d' WHERE {OF_JOB}",
        "its job has not recorded its end, and it is not marked as unsettled",
    ),
    ("type", with_part(2, 0, 5), "Task Released"),
    ("unknown type", with_part(2, 0, 99), "its type is 99"),
    ("type of no number", with_part(2, 0, "x"), "cannot be decoded to the end"),
    ("position", with_part(2, 2, 3), NOT_IN_FEED),
    ("position without a row", with_part(2, 2, 10_000), NOT_IN_FEED),
    ("context", with_part(2, 3, -99), "origin"),
    ("values", with_values(2, "7"), "its attempt number of Task Processing Started is None"),
    ("too few values", with_values(2, [1]), "its attempt number of Task Processing Started"),
    ("values of no list", with_values(6, 1.5), "its attempt number of Task Completed is None"),
    ("missing event", without_event(3), "3"),
    (
        "half a history",
        f"UPDATE tasks SET history = substr(history, 1, 40) WHERE {OF_TASK}",
        "its history cannot be decoded to the end",
    ),
    (
        "no history",
        f"UPDATE jobs SET history = x'' WHERE {OF_JOB}",
        "event",
    ),
    ("missing in the feed", refed(2, list.clear), NOT_IN_FEED),
    ("another type in the feed", refed(2, lambda groups: groups[0].__setitem__(0, 5)), NOT_IN_FEED),
    (
        "another tenant in the feed",
        refed(2, lambda groups: groups[0].__setitem__(1, 6)),
        NOT_IN_FEED,
    ),
    (
        "another sequence in the feed",
        refed(2, lambda groups: groups[0].__setitem__(2, 3)),
        NOT_IN_FEED,
    ),
    (
        "another entity in the feed",
        refed(2, lambda groups: groups[0].__setitem__(3, [5])),
        NOT_IN_FEED,
    ),
    ("damaged feed", "UPDATE feed SET entries = x'ff' WHERE position = 7", NOT_IN_FEED),
    ("damaged group", "UPDATE feed SET entries = x'9101' WHERE position = 7", NOT_IN_FEED),
    ("row of the feed", "DELETE FROM feed WHERE position = 7", NOT_IN_FEED),
    ("whole feed", "DELETE FROM feed", NOT_IN_FEED),
]


@pytest.mark.parametrize(
    ("change", "words"), [pytest.param(*item[1:], id=item[0]) for item in ONLY_IN_FILES]
)
def test_damage_that_only_a_file_can_have_is_found(
    folder: Path, sqlite_snapshots: SnapshotPair, change: str | Forge, words: str
) -> None:
    changed(folder, change)

    violations = violations_in(folder, sqlite_snapshots.unsettled)

    assert any(words in violation.text for violation in violations), violations


def test_rows_of_the_feed_that_were_removed_from_its_beginning_are_no_damage(
    folder: Path, sqlite_snapshots: SnapshotPair
) -> None:
    changed(folder, "DELETE FROM feed WHERE position < 20")

    assert violations_in(folder, sqlite_snapshots.unsettled) == []


def test_a_history_in_segments_is_the_same_history(
    folder: Path, sqlite_snapshots: SnapshotPair
) -> None:
    def split(connection: apsw.Connection) -> None:
        for no, sequence, history in connection.execute(
            "SELECT no, sequence, history FROM tasks WHERE sequence > 0"
        ).fetchall():
            parts = [packed(record) for record in unpacked(history)]
            first = sequence - len(parts) + 1
            connection.executemany(
                "INSERT INTO history_segments (entity, first_sequence, body) VALUES (?,?,?)",
                [(no, first + index, part) for index, part in enumerate(parts[:-1])],
            )
            connection.execute("UPDATE tasks SET history = ? WHERE no = ?", (parts[-1], no))

    changed(folder, split)
    taken_at_us = sqlite_snapshots.unsettled.taken_at_us

    snapshot = sqlite_reader.read_snapshot(folder, taken_at_us=taken_at_us)

    assert snapshot == sqlite_snapshots.unsettled
    of_task = f"entity = (SELECT no FROM tasks WHERE {OF_TASK})"
    changed(folder, f"DELETE FROM history_segments WHERE {of_task} AND first_sequence = 3")
    assert violations_in(folder, snapshot)


def test_parts_of_a_store_have_the_violations_of_the_whole(
    folder: Path, sqlite_snapshots: SnapshotPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown_task = "job-m_x"
    changed(
        folder,
        without_event(3),
        # What has no row.
        f"UPDATE other_events SET entity = 'TASK#{unknown_task}', type = {STARTED} WHERE no = 1",
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
    writer.execute("BEGIN IMMEDIATE; DELETE FROM tasks; DELETE FROM feed")

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
