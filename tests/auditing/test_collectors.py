"""What is stored becomes the same evidence, whichever backend stored it, and damage shows alike."""

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest

from longshore.core.numbers import NumberSet
from longshore.core.states import TaskState
from longshore.ports.backend import Backend
from longshore.testing import auditing
from longshore.testing.auditing import from_memory, from_sqlite
from longshore.testing.auditing.audit import Violation, audit
from longshore.testing.auditing.evidence import Evidence
from longshore.testing.auditing.vocabulary import job_id_of
from tests.auditing.conftest import Histories, played
from tests.unit.services.stage import TENANT

PIPELINE = job_id_of(TENANT, "pipeline")
TASK = f"{PIPELINE}_b"


def changed(folder: Path, sql: str, **names: str) -> None:
    """Damage a data folder."""
    connection = apsw.Connection(str(folder / "longshore.db"))
    connection.execute(sql, {"task": TASK, "entity": f"TASK#{TASK}", "job": PIPELINE, **names})
    assert connection.changes(), sql
    connection.close()


@pytest.fixture
def folder(in_sqlite: Histories, tmp_path: Path) -> Path:
    """A copy of a data folder, to be damaged."""
    shutil.copytree(in_sqlite.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("bells"))
    return tmp_path / "copy"


def found_in(folder: Path, like: Evidence) -> list[Violation]:
    return audit(from_sqlite.evidence_of(folder, taken_at_us=like.taken_at_us))


def test_both_backends_give_the_same_evidence(in_memory: Histories, in_sqlite: Histories) -> None:
    assert _plain(in_memory.at_rest) == _plain(in_sqlite.at_rest)
    assert _plain(in_memory.at_work) == _plain(in_sqlite.at_work)


def _plain(evidence: Evidence) -> dict[str, Any]:
    """Without what may differ: a fence has the boots that a file has seen in its upper half."""
    tasks = [
        task._replace(
            fence=_lower(task.fence),
            lease=task.lease and task.lease._replace(fence=_lower(task.lease.fence)),
        )
        for task in evidence.tasks
    ]
    events = [
        event._replace(says={**event.says, "fence": _lower(event.says.get("fence") or 0)})
        for event in evidence.events
    ]
    return {
        "jobs": sorted(evidence.jobs),
        "tasks": sorted(tasks, key=lambda task: task.id),
        "events": sorted(events, key=lambda event: event.position),
        "output": sorted(evidence.output),
        "messages": sorted(evidence.messages, key=str),
        "at": evidence.taken_at_us,
    }


def _lower(fence: Any) -> int:
    return int(fence) & 0xFFFF_FFFF


class Stored(NamedTuple):
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
        place = next(
            place
            for place, event in enumerate(events)
            if (event.entity_id, event.sequence) == (TASK, sequence)
        )
        if fields:
            event = events[place]
            events[place] = replace(event, body=replace(event.body, **fields))
        else:
            del events[place]

    return forge


def _output(backend: Backend) -> None:
    entries = backend.output._entries[TASK]
    del entries[next(place for place in entries if place.attempt == 1)]


def _blobs(backend: Backend) -> None:
    backend.blobs._blobs.clear()


STORED = [
    Stored(1, "DELETE FROM blobs", _blobs),
    Stored(
        2,
        "UPDATE events SET properties = json_set(properties, '$.attemptNumber', 1)"
        " WHERE entity = :entity AND sequence = 4",
        _event(4, attempt_number=1),
    ),
    Stored(
        3,
        "UPDATE events SET properties = json_set(properties, '$.attemptNumber', 1)"
        " WHERE entity = :entity AND sequence = 6",
        _event(6, attempt_number=1),
    ),
    Stored(5, "DELETE FROM events WHERE entity = :entity AND sequence = 3", _event(3)),
    Stored(
        5,
        "UPDATE tasks SET state = 'in_review', body = json_set(body, '$.state', 'in_review')"
        " WHERE id = :task",
        _row(state=TaskState.IN_REVIEW),
    ),
    Stored(
        6,
        "UPDATE tasks SET body = json_set(body, '$.awaits', '1') WHERE id = :task",
        _row(awaits=NumberSet([0])),
    ),
    Stored(
        7,
        "UPDATE jobs SET state = 'failed', body = json_set(body, '$.failed', '2',"
        " '$.completed', 'd') WHERE id = :job",
        _job(failed=NumberSet([1]), completed=NumberSet([0, 2, 3])),
    ),
    Stored(
        8,
        "DELETE FROM output WHERE task_id = :task AND attempt = 1 AND sequence = 1",
        _output,
    ),
    Stored(
        11,
        "UPDATE tasks SET body = json_set(body, '$.attempts_used', 9) WHERE id = :task",
        _row(attempts_used=9),
    ),
    Stored(
        13,
        "UPDATE events SET properties = json_set(properties, '$.jobId', 'x')"
        " WHERE entity = :entity AND sequence = 1",
        _event(1, job_id="x"),
    ),
]


@pytest.mark.parametrize("stored", STORED, ids=lambda stored: f"{stored.invariant}: {stored.sql}")
def test_the_same_damage_gives_the_same_findings(
    folder: Path, tmp_path: Path, in_sqlite: Histories, stored: Stored
) -> None:
    changed(folder, stored.sql)
    backend = played("atomic memory", tmp_path).backend
    assert backend is not None
    stored.forge(backend)

    in_file = found_in(folder, in_sqlite.at_work)
    in_memory = audit(from_memory.evidence_of(backend))

    assert stored.invariant in [one.invariant for one in in_file]
    assert in_file == in_memory


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE tasks SET state = 'pending' WHERE id = :task", "it is found by state 'pending'"),
        ("UPDATE tasks SET due_us = 5 WHERE id = :task", "it is found by due time 5"),
        ("UPDATE tasks SET lease_us = 5 WHERE id = :task", "it is found by end of its lease 5"),
        ("UPDATE tasks SET finished_us = NULL WHERE id = :task", "it is found by end None"),
        ("UPDATE tasks SET tenant = 'other' WHERE id = :task", "it is found by tenant 'other'"),
        ("UPDATE jobs SET intents = 1 WHERE id = :job", "number of intents 1"),
        ("UPDATE jobs SET ended = 1 WHERE id = :job", "number of ends 1"),
        ("UPDATE jobs SET untold = 1 WHERE id = :job", "untold end 1"),
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
def test_what_only_a_file_can_have_wrong_is_found(
    folder: Path, in_sqlite: Histories, sql: str, words: str
) -> None:
    changed(folder, sql)

    found = found_in(folder, in_sqlite.at_work)

    assert any(one.invariant == 5 and words in one.text for one in found), found


@pytest.mark.parametrize("job_id", ["job-2", "job-m", "job-z"])
def test_pieces_find_what_the_whole_finds(
    folder: Path, in_sqlite: Histories, monkeypatch: pytest.MonkeyPatch, job_id: str
) -> None:
    changed(folder, "DELETE FROM events WHERE entity = :entity AND sequence = 3")
    # What has no job: before, between or behind those that have one.
    stranger = f"{job_id}_x"
    changed(
        folder,
        "UPDATE events SET entity = :stranger WHERE entity = :entity AND sequence > 4",
        stranger=f"TASK#{stranger}",
    )
    monkeypatch.setattr(from_sqlite, "_TASKS_AT_ONCE", 1)

    pieces = list(from_sqlite.pieces_of(folder, taken_at_us=in_sqlite.at_work.taken_at_us))
    found = [one for piece in pieces for one in audit(piece.evidence)]

    assert len(pieces) > len(in_sqlite.at_work.jobs) > 5
    assert sum(piece.jobs for piece in pieces) == from_sqlite.size_of(folder).jobs
    assert sorted(found) == found_in(folder, in_sqlite.at_work)
    assert any(one.subject == stranger for one in found)


def test_a_large_document_whose_file_is_gone_is_missing(folder: Path, in_sqlite: Histories) -> None:
    changed(folder, "UPDATE blobs SET file = 'ab12', data = NULL WHERE key LIKE '%result-2.json'")

    found = found_in(folder, in_sqlite.at_work)
    (folder / "blobs" / "ab").mkdir(parents=True)
    (folder / "blobs" / "ab" / "ab12").touch()

    assert {one.invariant for one in found} == {1}
    assert found_in(folder, in_sqlite.at_work) == []


def test_an_audit_sees_one_moment_and_waits_for_no_writer(
    folder: Path, in_sqlite: Histories
) -> None:
    writer = apsw.Connection(str(folder / "longshore.db"))
    writer.execute("BEGIN IMMEDIATE; DELETE FROM events")

    assert found_in(folder, in_sqlite.at_work) == []
    writer.execute("ROLLBACK")
    writer.close()


def test_an_audit_changes_nothing(folder: Path, in_sqlite: Histories) -> None:
    before = (folder / "longshore.db").read_bytes()

    found_in(folder, in_sqlite.at_work)
    list(from_sqlite.pieces_of(folder))

    assert (folder / "longshore.db").read_bytes() == before


# How bytes are packed, and nothing of what they say.
MAY_BE_SHARED = ("longshore.adapters.aws.packing",)


def test_the_auditor_shares_no_code_with_what_it_checks() -> None:
    (place,) = auditing.__path__
    for path in sorted(Path(place).glob("*.py")):
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
                and not name.startswith(auditing.__name__)
                and name not in MAY_BE_SHARED
            ]
            assert strange == [], path
