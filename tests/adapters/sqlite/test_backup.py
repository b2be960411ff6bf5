"""Backups are of one moment, complete or absent, and never block retention for long."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.backups import backup
from longshore.adapters.sqlite.blob_files import pause_removal, removal, remove_noted
from longshore.adapters.sqlite.store_file import FILE_NAME
from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.errors import (
    BackendUnavailable,
    CommandRefused,
    NotFound,
    StoreCorrupt,
    UsageError,
)
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from tests.adapters.sqlite.backup_stores import (
    KILLED,
    LARGE,
    back_up,
    execute,
    fill,
    killed_at,
    make_store,
    names_in,
    restore_to,
    select,
)
from tests.unit.services.harness import job_id, scenario
from verification.backups import prove
from verification.crash.failpoint_ports import BACKUP_FAILPOINTS

DAY = timedelta(days=1)
ROUNDS = 5  # `make backup-proof` makes more
ONLY_OF = {
    "backup.folder_synced": "backup",
    "backup.published": "backup",
    "backup.archive_synced": "backup.tar.zst",
    "backup.linked": "backup.tar.zst",
    "backup.file_synced": "backup",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "data")


@pytest.fixture(params=["backup", "backup.tar.zst"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "backups").mkdir()
    return tmp_path / "backups" / str(request.param)


def test_backups_of_a_busy_store_are_whole(tmp_path: Path) -> None:
    rounds = list(prove(tmp_path, rounds=ROUNDS))

    assert [result.problems for result in rounds] == [()] * ROUNDS
    positions = [result.positions for result in rounds]
    assert positions == sorted(set(positions))  # the store was used meanwhile
    assert all(result.backup.blobs for result in rounds)


def test_a_backup_has_the_rows_and_the_files_and_nothing_else(store: Path, target: Path) -> None:
    (store / "api-key").write_text("secret")  # where the first versions stored it
    (store / "blobs" / "ab").mkdir()
    (store / "blobs" / "ab" / ("ab" + "0" * 30)).write_text("a file without a row")

    facts = back_up(store, target)

    assert (facts.jobs, facts.tasks, facts.blobs, facts.missing_blobs) == (1, 1, 1, 0)
    assert names_in(target.parent) == {target.name}
    restored = target.parent / "restored"
    key_file = restore_to(restored, target).key_file
    assert not (restored / "api-key").exists()
    assert key_file.read_text() != "secret"
    assert [path.read_bytes() for path in restored.glob("blobs/*/*")] == [LARGE]
    assert audit(read_snapshot(restored, taken_at_us=0)) == []


def test_a_folder_can_be_checked_with_the_usual_program(store: Path, tmp_path: Path) -> None:
    back_up(store, tmp_path / "backup")

    checked = subprocess.run(
        ["sha256sum", "--check", "--quiet", "checksums.sha256"],
        cwd=tmp_path / "backup",
        check=False,
    )

    assert checked.returncode == 0


@scenario
async def test_what_is_committed_after_the_first_step_is_not_in_the_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_file, "_COPY_PAGES", 1)
    data = tmp_path / "data"
    async with sqlite_backend(data, FakeClock(START)) as backend:
        await fill(backend, "first")
        steps: list[int] = []

        def report(done: int, total: int) -> None:
            del total
            if not steps:
                sql = "INSERT INTO names (text) SELECT hex(randomblob(50)) FROM kinds, tasks"
                execute(data / FILE_NAME, sql)
                execute(
                    data / FILE_NAME, "INSERT INTO names (text) VALUES ('after the first step')"
                )
            steps.append(done)

        store_file.copy_database(data / FILE_NAME, tmp_path / "copy.db", report)

    where = "SELECT count(*) FROM names WHERE text = 'after the first step'"
    assert len(steps) > 10
    assert steps == sorted(set(steps))  # it never began again
    assert (select(data / FILE_NAME, where), select(tmp_path / "copy.db", where)) == (1, 0)


class Removal(NamedTuple):
    name: str
    act: Callable[[Any], Any]


async def _retention(backend: Any) -> None:
    port, now = backend.retention, backend.clock.now()
    await port.remove_jobs([job_id("first")], ended_by=now, remember_until=now + DAY)
    await port.remove_remains(now=now, limit=10)


@pytest.mark.parametrize(
    "removal_of",
    [
        Removal("replace", lambda backend: backend.blobs.put(f"jobs/{job_id('first')}/x", b"y")),
        Removal("delete", lambda backend: backend.blobs.delete(f"jobs/{job_id('first')}/x")),
        Removal("retention", _retention),
    ],
    ids=lambda item: item.name,
)
@scenario
async def test_a_file_stays_until_the_backup_has_ended(tmp_path: Path, removal_of: Removal) -> None:
    data = tmp_path / "data"
    async with sqlite_backend(data, FakeClock(START)) as backend:
        await fill(backend, "first")
        await backend.blobs.delete("first")
        await backend.blobs.put(f"jobs/{job_id('first')}/x", LARGE)
        (file,) = data.glob("blobs/??/*")

        with pause_removal(data):
            await removal_of.act(backend)
            assert file.exists()
        now = backend.clock.now()
        await backend.require_retention().remove_remains(now=now, limit=10)

        assert not file.exists()
        assert not list(data.glob("blobs/removed/*"))


def test_a_second_backup_is_refused_while_one_is_under_way(store: Path, target: Path) -> None:
    with (
        pause_removal(store),
        pytest.raises(CommandRefused, match=f"by process {os.getpid()} is under way"),
    ):
        back_up(store, target)

    back_up(store, target)
    assert names_in(target.parent) == {target.name}


def test_a_backup_that_was_frozen_for_too_long_fails_and_hinders_nothing(
    store: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_database = store_file.copy_database

    def freeze(*arguments: Any) -> None:
        copy_database(*arguments)
        long_ago = os.stat(store / "backup.lock").st_mtime - 2 * 86_400
        os.utime(store / "backup.lock", (long_ago, long_ago))
        with removal(store) as allowed:
            assert allowed

    monkeypatch.setattr(store_file, "copy_database", freeze)

    with pytest.raises(BackendUnavailable, match="took more than 12 hours"):
        back_up(store, target)

    assert names_in(target.parent) == set()


@pytest.mark.parametrize("point", BACKUP_FAILPOINTS)
def test_a_backup_that_is_killed_leaves_no_part_of_one(
    store: Path, target: Path, point: str
) -> None:
    if ONLY_OF.get(point, target.name) != target.name:
        pytest.skip("not reached")

    assert killed_at(point, lambda: back_up(store, target)) == KILLED

    if point in ("backup.published", "backup.linked"):  # it was complete
        restore_to(target.parent / "restored", target)
        return
    assert not target.exists()
    with removal(store) as allowed:
        assert allowed
    assert back_up(store, target).blobs == 1
    assert names_in(target.parent) == {target.name}  # the draft is gone too


def test_the_draft_of_a_running_backup_is_not_removed_by_another_one(
    store: Path, target: Path
) -> None:
    with backup.draft_folder(target.parent) as draft:
        back_up(store, target)
        assert draft.exists()


def test_another_process_that_removes_a_dead_draft_may_be_killed(store: Path, target: Path) -> None:
    killed_at("backup.database_copied", lambda: back_up(store, target))

    assert killed_at("backup.draft_removing", lambda: back_up(store, target)) == KILLED
    back_up(store, target)
    assert names_in(target.parent) == {target.name}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("there", "exists already"),
        ("dangling", "exists already"),
        ("data/backup", "is inside the data folder"),
        ("link/backup", "is inside the data folder"),
        ("missing/backup", "is not a folder; create it first"),
        ("backup.zip", "a backup is a folder or a file whose name ends in .tar.zst"),
        ("backup.tar.gz", "a backup is a folder or a file whose name ends in .tar.zst"),
    ],
)
def test_a_target_that_cannot_be_used_is_refused(
    store: Path, tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "link").symlink_to(store)
    before = names_in(tmp_path)

    with pytest.raises(UsageError, match=problem):
        back_up(store, tmp_path / name)

    assert names_in(tmp_path) == before


def test_a_folder_without_a_store_is_not_backed_up(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no store"):
        back_up(tmp_path / "nothing", tmp_path / "backup")


def test_a_disk_without_room_is_named_before_anything_is_copied(
    store: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1_000))

    with pytest.raises(BackendUnavailable, match=r"disk full: .* has 1,000 bytes free"):
        back_up(store, target)

    assert names_in(target.parent) == set()


def test_a_disk_that_becomes_full_is_named_and_nothing_is_left(
    store: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(BackendUnavailable, match=r"disk full: .* was not created"):
        back_up(store, target)

    assert names_in(target.parent) == set()


def test_files_that_the_store_has_lost_are_counted(store: Path, target: Path) -> None:
    (file,) = store.glob("blobs/??/*")
    file.unlink()

    facts = back_up(store, target)

    assert (facts.blobs, facts.missing_blobs) == (0, 1)
    restore_to(target.parent / "restored", target)


def test_files_whose_removal_was_interrupted_are_not_counted(store: Path, target: Path) -> None:
    (file,) = store.glob("blobs/??/*")
    file.unlink()
    key = f"jobs/{job_id('first')}/first"
    execute(store / FILE_NAME, "UPDATE blobs SET key = ? WHERE file IS NOT NULL", key)
    sql = "INSERT INTO removed_jobs (id, until_ms, due_ms) SELECT id, 1, 0 FROM jobs"
    execute(store / FILE_NAME, sql)

    assert back_up(store, target).missing_blobs == 0


def test_a_damaged_store_is_not_backed_up(store: Path, target: Path) -> None:
    path = store / FILE_NAME
    data = path.read_bytes()
    path.write_bytes(data[:8192] + b"\xff" * 4096 + data[12288:])

    with pytest.raises(StoreCorrupt):
        back_up(store, target)

    assert names_in(target.parent) == set()


def test_a_store_of_an_older_schema_is_backed_up_as_it_is(tmp_path: Path, target: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with closing(store_file.apsw.Connection(str(data / FILE_NAME))) as connection:
        connection.execute(store_file.migrations()[0][1])
        connection.execute(f"PRAGMA application_id={store_file.APPLICATION_ID}")
        connection.execute("PRAGMA user_version=1")

    assert back_up(data, target).schema == 1
    assert select(data / FILE_NAME, "PRAGMA user_version") == 1


@scenario
async def test_a_process_that_is_killed_while_it_removes_noted_files_is_repeated(
    tmp_path: Path,
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await fill(backend, "first")
        with pause_removal(tmp_path):
            await backend.blobs.delete("first")

    assert killed_at("blob.noted_removed", lambda: remove_noted(tmp_path)) == KILLED
    remove_noted(tmp_path)

    assert not list(tmp_path.glob("blobs/*/*"))
