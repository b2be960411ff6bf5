"""What is left in the file after jobs were removed: no unused number, row or page."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import store_file, transaction
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.documents import submitted_document_key
from longshore.ports.backend import Backend
from longshore.services.submit import Submission
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.retention import chunk
from longshore.testing.contracts.samples import append_event
from longshore.testing.contracts.suite import START
from tests.unit.services.harness import TENANT, ServiceHarness, job_id, make_task, scenario

DAY = timedelta(days=1)
LARGE = b"x" * 100_000
TABLES = ("jobs", "tasks", "history_segments", "output", "blobs", "feed", "feed_types")


async def finished_jobs(backend: Backend, *names: str, **fields: Any) -> ServiceHarness:
    harness = ServiceHarness(backend)
    for name in names:
        await harness.submit(make_task("a", **fields), make_task("b"), request_id=name)
        await harness.finish()
    return harness


async def remove(backend: Backend, *names: str) -> None:
    removed = await backend.require_retention().remove_jobs(
        [job_id(name) for name in names],
        ended_by=backend.clock.now(),
        remember_until=backend.clock.now() + DAY,
    )
    assert len(removed) == len(names)


def select(folder: Path, sql: str) -> Any:
    flags = apsw.SQLITE_OPEN_READONLY
    with closing(apsw.Connection(str(folder / store_file.FILE_NAME), flags=flags)) as connection:
        return connection.execute(sql).fetchone()[0]


def check_audit(folder: Path) -> None:
    assert audit(read_snapshot(folder, taken_at_us=0)) == []


@scenario
async def test_only_one_row_of_each_order_is_left_when_all_jobs_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "SEGMENT_BYTES", 0)

    def count_rows() -> dict[str, int]:
        return {
            name: select(tmp_path, f"SELECT count(*) FROM {name}")  # noqa: S608
            for name in TABLES
        }

    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        names = [f"job-{number}" for number in range(60)]
        await finished_jobs(backend, *names, input="x" * 5_000)
        for name in names:
            await backend.output.append(f"{job_id(name)}_a", [chunk(1)])
        before = count_rows()
        await remove(backend, *names)
        await backend.require_retention().remove_remains(now=START, limit=100)

    assert 0 not in before.values()
    counts = count_rows()
    # The last position and the last number are kept, with the index of that position.
    assert (counts.pop("jobs"), counts.pop("feed")) == (1, 1)
    assert 0 < counts.pop("feed_types") < 20
    assert set(counts.values()) == {0}
    check_audit(tmp_path)


@scenario
async def test_numbers_of_removed_jobs_and_positions_are_not_used_again(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await finished_jobs(backend, "first", "second")
        last_no = select(tmp_path, "SELECT max(no) FROM jobs")
        last_position = select(tmp_path, "SELECT max(position) FROM feed")
        await remove(backend, "first", "second")
        await finished_jobs(backend, "third")
        await remove(backend, "third")
        await finished_jobs(backend, "fourth")
        shown = await backend.events.query(TENANT, limit=1000)

    assert select(tmp_path, "SELECT min(no) FROM jobs WHERE version > 0") == last_no + 2
    assert select(tmp_path, "SELECT count(*) FROM jobs") <= 2
    assert select(tmp_path, "SELECT count(*) FROM feed") > 1
    assert select(tmp_path, "SELECT max(position) FROM feed") > last_position
    assert {event.entity_id.partition("_")[0] for event in shown.items} == {job_id("fourth")}
    check_audit(tmp_path)


@scenario
async def test_a_row_of_the_feed_stays_with_the_last_of_its_jobs(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        harness = ServiceHarness(backend)
        await append_event(backend, tenant=TENANT)
        # Both are created at one position.
        documents = [{"tasks": [make_task("a")]}, {"tasks": [make_task("a")]}]
        await harness.producer.submit_many(
            TENANT, [Submission(document, f"job-{no}") for no, document in enumerate(documents)]
        )
        await harness.finish()
        await remove(backend, "job-0")
        before = await backend.events.query(TENANT, limit=1000)
        check_audit(tmp_path)
        await remove(backend, "job-1")
        others = await backend.events.query(TENANT, limit=1000)

    assert {event.entity_id.partition("_")[0] for event in before.items} == {
        "default",
        job_id("job-1"),
    }
    assert [event.entity_id for event in others.items] == ["default"]


@scenario
async def test_events_without_a_job_leave_nothing_but_the_last_of_each_entity(
    tmp_path: Path,
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        for second in range(200):
            now = START + timedelta(seconds=second)
            await append_event(backend, tenant=TENANT, queue=f"queue-{second % 2}", now=now)
        before = START + timedelta(seconds=150)
        port = backend.require_retention()
        removed = [await port.remove_other_events(before=before, limit=100) for _ in range(3)]
        half = select(tmp_path, "SELECT count(*) FROM feed")
        check_audit(tmp_path)
        await port.remove_other_events(before=START + DAY, limit=1000)

    assert removed == [100, 51, 0]
    assert half == 49
    counts = [select(tmp_path, f"SELECT count(*) FROM {name}") for name in ("other_events", "feed")]  # noqa: S608
    assert counts == [2, 2]
    assert select(tmp_path, "SELECT count(*) FROM feed_types") == 1
    check_audit(tmp_path)


@pytest.mark.parametrize("committed", [False, True])
@scenario
async def test_files_of_blobs_are_removed_also_after_a_crash_beside_the_commit(
    *, committed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await finished_jobs(backend, "one")
        for name in ("one", "other"):
            key = submitted_document_key(job_id(name), "0" * 16, "large")
            await backend.blobs.put(key, LARGE)
        await remove(backend, "one")
        port: Any = backend.require_retention()

        write = port._database.write

        async def die(work: Any) -> None:
            if committed:
                await write(work)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(port._database, "write", die)
            with pytest.raises(KeyboardInterrupt):
                await port.remove_remains(now=START, limit=10)
        assert await port.remove_remains(now=START, limit=10) == (0 if committed else 1)

        files = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
        assert len(files) == len(await backend.blobs.list_keys("")) == 1


@scenario
async def test_the_file_shrinks(tmp_path: Path) -> None:
    names = [f"job-{number}" for number in range(100)]
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await finished_jobs(backend, *names, input="x" * 1000)
        for number in range(100):
            key = submitted_document_key(job_id(names[number]), "0" * 16, "blob")
            await backend.blobs.put(key, b"x" * 10_000)
        before = select(tmp_path, "SELECT page_count FROM pragma_page_count")
        await remove(backend, *names)
        await backend.require_retention().remove_remains(now=START, limit=1000)
        after = select(tmp_path, "SELECT page_count FROM pragma_page_count")

    assert select(tmp_path, "SELECT auto_vacuum FROM pragma_auto_vacuum") == 2
    assert after < before / 2


@scenario
async def test_a_half_removed_job_is_found_by_the_audit(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await finished_jobs(backend, "one", "other")
    with closing(apsw.Connection(str(tmp_path / store_file.FILE_NAME))) as connection:
        connection.execute("DELETE FROM jobs WHERE no = 1")
        connection.execute("INSERT INTO output VALUES ((2 << 20) + 9, 1, 1, 0, 0, NULL, x'')")
        connection.execute("INSERT INTO removed_jobs SELECT id, 0, 0 FROM jobs WHERE no = 2")

    texts = {str(violation) for violation in audit(read_snapshot(tmp_path, taken_at_us=0))}

    assert any("its output is stored, and its row is not" in text for text in texts)
    assert any("it was removed, but there are still its row" in text for text in texts)
    assert any("job" in text and "None" in text for text in texts)
