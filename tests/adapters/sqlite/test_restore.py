"""Restores: everything is checked first, no fence is issued twice, and nothing is replaced."""

import asyncio
import io
import json
import tarfile
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from backports import zstd

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.backups.restore import BadBackup
from longshore.adapters.sqlite.store_file import FILE_NAME
from longshore.adapters.system import SystemClock, key_file
from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.api_keys import hash_key
from longshore.core.tasks.states import TaskState
from longshore.errors import CursorLost, NotFound, UsageError
from longshore.ports.backend import Backend
from longshore.testing.contracts.task_source import join
from tests.adapters.sqlite.backup_stores import (
    KILLED,
    back_up,
    execute,
    fill,
    killed_at,
    make_store,
    names_in,
    restore_to,
    select,
)
from tests.unit.services.harness import TENANT, ServiceHarness, make_task, task_id

Rewrite = Callable[[list[tuple[tarfile.TarInfo, bytes]]], None]


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    back_up(make_store(folder / "data"), folder / "backup")
    return folder / "backup"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    back_up(make_store(folder / "data"), folder / "backup.tar.zst")
    return folder / "backup.tar.zst"


def copy_of(backup: Path, tmp_path: Path) -> Path:
    copied = tmp_path / "copy"
    for path in backup.rglob("*"):
        if path.is_file():
            target = copied / path.relative_to(backup)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return copied


def open_store(folder: Path) -> Any:
    return sqlite_backend(folder, SystemClock())


async def claim_one(backend: Backend) -> int:
    """Claim the one pending task. Returns its fence."""
    assert backend.source is not None
    worker = await join(backend.source, "claimer")
    (claimed,) = await worker.claim()
    fence: int = claimed.row.fence
    return fence


# What is restored --------------------------------------------------------------------------------


def test_fences_of_a_restored_store_were_never_issued_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("first")
    monkeypatch.setattr(store_file, "_BOOT_ID", boot_id)
    original = tmp_path / "original"

    async def submit() -> None:
        async with open_store(original) as backend:
            await ServiceHarness(backend).submit(make_task("a"))

    async def claim(folder: Path) -> int:
        async with open_store(folder) as backend:
            return await claim_one(backend)

    asyncio.run(submit())
    back_up(original, tmp_path / "backup")
    folders = [tmp_path / f"restored-{number}" for number in range(3)]
    fences = [asyncio.run(claim(original))]
    for folder in folders:
        restore_to(folder, tmp_path / "backup")
        fences.append(asyncio.run(claim(folder)))

    assert len(set(fences)) == 4
    assert fences == sorted(fences)
    # Nor after the next boot.
    boot_id.write_text("second")
    assert store_file.prepare(folders[-1]) > max(fences) >> 32


def test_the_tasks_of_workers_that_are_gone_can_be_claimed_at_once(tmp_path: Path) -> None:
    async def claim() -> None:
        async with open_store(tmp_path / "data") as backend:
            await ServiceHarness(backend).submit(make_task("a", maxAttempts=3))
            await claim_one(backend)

    async def claim_again() -> tuple[TaskState, int]:
        async with open_store(tmp_path / "restored") as backend:
            row = await backend.ledger.get_task(task_id("a"))
            return row.state, row.attempts_used

    asyncio.run(claim())
    back_up(tmp_path / "data", tmp_path / "backup")

    assert restore_to(tmp_path / "restored", tmp_path / "backup").leases_ended == 1

    assert asyncio.run(claim_again()) == (TaskState.PENDING, 1)
    assert audit(read_snapshot(tmp_path / "restored")) == []


def test_the_machine_gets_a_key_of_its_own(backup: Path, tmp_path: Path) -> None:
    async def is_known(folder: Path, text: str) -> bool:
        async with open_store(folder) as backend:
            return await backend.keys.find(hash_key(text)) is not None

    keys = []
    for name in ("one", "two"):
        own_file = key_file(tmp_path / "keys", tmp_path / name)
        own_file.parent.mkdir(exist_ok=True)
        own_file.write_text("that of a folder which had this path before")
        own_file.chmod(0o600)
        facts = restore_to(tmp_path / name, backup)
        assert facts.key_file == own_file
        assert own_file.stat().st_mode & 0o077 == 0
        keys.append(own_file.read_text().strip())

    assert len({*keys, "that of a folder which had this path before"}) == 3
    assert asyncio.run(is_known(tmp_path / "one", keys[0]))
    assert not asyncio.run(is_known(tmp_path / "one", keys[1]))


def test_a_cursor_behind_the_backup_is_refused_and_says_where_to_read_again(
    tmp_path: Path,
) -> None:
    async def add(folder: Path, *requests: str) -> list[str]:
        async with open_store(folder) as backend:
            await fill(backend, *requests)
            return list((await backend.events.query(TENANT)).cursors)

    async def read(folder: Path, cursor: str) -> int:
        async with open_store(folder) as backend:
            return len((await backend.events.query(TENANT, cursor=cursor)).items)

    before = asyncio.run(add(tmp_path / "data", "first"))
    back_up(tmp_path / "data", tmp_path / "backup")
    after = asyncio.run(add(tmp_path / "data", "second"))
    assert asyncio.run(read(tmp_path / "data", after[-1])) == 0
    folder = tmp_path / "restored"
    restore_to(folder, tmp_path / "backup")
    later = asyncio.run(add(folder, "third"))
    other = tmp_path / "restored again"
    restore_to(other, tmp_path / "backup")

    # What both have: the reader misses nothing.
    assert asyncio.run(read(folder, before[-1])) == len(later) - len(before)
    assert asyncio.run(read(other, before[0])) == len(before) - 1
    with pytest.raises(CursorLost, match="read again from the cursor ") as lost:
        asyncio.run(read(folder, after[-1]))
    assert lost.value.read_from is not None
    assert asyncio.run(read(folder, lost.value.read_from)) == len(later) - len(before)
    # The other store from the same backup has not seen this epoch.
    with pytest.raises(CursorLost, match="read again from the beginning"):
        asyncio.run(read(other, later[-1]))
    assert asyncio.run(read(other, later[0])) == len(before) - 1


@pytest.mark.parametrize("point", ["restore.file_copied", "restore.prepared", "store.epoch_raised"])
def test_a_restore_that_is_killed_leaves_no_data_folder(
    backup: Path, tmp_path: Path, point: str
) -> None:
    folder = tmp_path / "restored"

    assert killed_at(point, lambda: restore_to(folder, backup)) == KILLED

    assert not folder.exists()
    restore_to(folder, backup)
    assert names_in(tmp_path) == {"restored", "keys"}  # the draft is gone too
    assert len(names_in(tmp_path / "keys")) == 1


# What is refused ---------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty_is_not_touched(backup: Path, tmp_path: Path) -> None:
    folder = make_store(tmp_path / "data")
    before = (folder / FILE_NAME).read_bytes()

    with pytest.raises(UsageError, match="is not empty, and a restore replaces nothing"):
        restore_to(folder, backup)

    assert (folder / FILE_NAME).read_bytes() == before
    (tmp_path / "empty").mkdir()
    restore_to(tmp_path / "empty", backup)


def test_a_link_or_a_file_is_no_data_folder(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "file").touch()

    for name in ("link", "file"):
        with pytest.raises(UsageError, match="is not a folder"):
            restore_to(tmp_path / name, backup)

    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_source_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no backup .*/nothing"):
        restore_to(tmp_path / "restored", tmp_path / "nothing")


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))


def _edit_manifest(backup: Path, **values: Any) -> None:
    path = backup / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _blob(backup: Path) -> Path:
    return next(backup.glob("blobs/*/*"))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda b: _flip(b / FILE_NAME, 5000), "the checksum of longshore.db is wrong"),
        (lambda b: _flip(_blob(b), 5), "the checksum of blobs/.* is wrong"),
        (lambda b: _blob(b).unlink(), "names other files"),
        (lambda b: (b / FILE_NAME).unlink(), "names other files"),
        (lambda b: (b / "checksums.sha256").unlink(), "no whole backup: it has no checksums"),
        (lambda b: (b / "checksums.sha256").write_text("x"), "names other files"),
        (lambda b: (b / "manifest.json").unlink(), "no whole backup: it has no manifest"),
        (lambda b: (b / "manifest.json").write_text("[]"), "manifest.json is not valid"),
        (lambda b: (b / "manifest.json").write_text("[" * 60_000), "manifest.json is not valid"),
        (lambda b: (b / "manifest.json").write_bytes(b" " * 70_000), "manifest.json is too large"),
        (lambda b: _edit_manifest(b, jobs=5), "the checksum of manifest.json is wrong"),
        (lambda b: _edit_manifest(b, size_bytes=5), "larger than its manifest says"),
        (lambda b: _edit_manifest(b, blobs=-1), "manifest.json is not valid"),
        (lambda b: _edit_manifest(b, schema=9999), "newer version; upgrade Longshore"),
        (lambda b: _edit_manifest(b, format=2), "newer version; upgrade Longshore"),
        (lambda b: (b / "api-key").write_text("x"), "an entry that no backup has: 'api-key'"),
        (lambda b: (b / "a").symlink_to("/etc/passwd"), "an entry that no backup has: 'a'"),
        (lambda b: (b / "blobs" / "l").symlink_to("/etc"), "an entry that no backup has"),
    ],
)
def test_a_changed_backup_is_refused_and_nothing_is_left(
    backup: Path, tmp_path: Path, change: Callable[[Path], object], problem: str
) -> None:
    source = copy_of(backup, tmp_path)
    change(source)

    with pytest.raises(BadBackup, match=problem):
        restore_to(tmp_path / "restored", source)

    assert names_in(tmp_path) == {"copy"}


def _entry(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    content = fields.pop("content", b"")
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    for field, value in fields.items():
        setattr(entry, field, value)
    return entry, content


def _rewrite(archive: Path, target: Path, change: Rewrite, **how: Any) -> Path:
    with zstd.open(archive, "rb") as file, tarfile.open(fileobj=file, mode="r|") as source:
        entries = [(entry, source.extractfile(entry).read()) for entry in source]  # type: ignore[union-attr]
    change(entries)
    with zstd.open(target, "wb") as file, tarfile.open(fileobj=file, mode="w|", **how) as tar:
        for entry, content in entries:
            tar.addfile(entry, io.BytesIO(content))
    return target


PLAIN = "no regular file"
UNKNOWN = "an entry that no backup has"


@pytest.mark.parametrize(
    ("hostile", "problem"),
    [
        (_entry("../escaped", content=b"x"), UNKNOWN),
        (_entry("blobs/ab/../../../escaped", content=b"x"), UNKNOWN),
        (_entry("/tmp/escaped", content=b"x"), UNKNOWN),
        (_entry("blobs/ab/ab" + "0" * 31), UNKNOWN),
        (_entry("longshore.db-wal", content=b"x"), UNKNOWN),
        (_entry("blobs/ab/ab" + "0" * 30, type=tarfile.SYMTYPE, linkname="/etc"), PLAIN),
        (_entry("blobs/ab/ab" + "0" * 30, type=tarfile.LNKTYPE, linkname=FILE_NAME), PLAIN),
        (_entry("blobs", type=tarfile.DIRTYPE), PLAIN),
        (_entry("blobs/ab/ab" + "0" * 30, type=tarfile.CHRTYPE, devmajor=1, devminor=3), PLAIN),
        (_entry("blobs/ab/ab" + "0" * 30, type=tarfile.FIFOTYPE), PLAIN),
        (_entry("blobs/ab/ab" + "0" * 30, content=b"x" * 1_000), "than its manifest says"),
        (_entry("x" * 200, content=b"x"), PLAIN),  # a header for a long name
        (_entry(FILE_NAME, content=b"x"), UNKNOWN),  # a second one
        (_entry("manifest.json", content=b"x"), UNKNOWN),
    ],
)
def test_a_hostile_archive_is_refused_and_writes_nothing_outside(
    archive: Path, tmp_path: Path, hostile: tuple[tarfile.TarInfo, bytes], problem: str
) -> None:
    source = _rewrite(archive, tmp_path / "hostile", lambda e: e.insert(-1, hostile))

    with pytest.raises(BadBackup, match=problem):
        restore_to(tmp_path / "restored", source)

    assert names_in(tmp_path) == {"hostile"}


def test_an_entry_after_the_end_is_refused(archive: Path, tmp_path: Path) -> None:
    late = _entry("blobs/ab/ab" + "0" * 30)
    source = _rewrite(archive, tmp_path / "hostile", lambda entries: entries.append(late))

    with pytest.raises(BadBackup, match="comes after its end"):
        restore_to(tmp_path / "restored", source)


def test_extended_headers_are_refused_before_they_are_read(archive: Path, tmp_path: Path) -> None:
    source = _rewrite(
        archive,
        tmp_path / "hostile",
        lambda entries: None,
        format=tarfile.PAX_FORMAT,
        pax_headers={"comment": "x" * 1_000_000},
    )

    with pytest.raises(BadBackup, match=PLAIN):
        restore_to(tmp_path / "restored", source)


def test_an_archive_that_expands_without_end_is_refused_early(
    archive: Path, tmp_path: Path
) -> None:
    # A gigabyte of zeros in a few kilobytes: its header says so, and the manifest does not.
    source = tmp_path / "bomb"
    with zstd.open(archive, "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
        first = tar.next()
        assert first is not None
        manifest = tar.extractfile(first).read()  # type: ignore[union-attr]
    size = 1 << 30
    with zstd.open(source, "wb") as file:
        file.write(
            first.tobuf(tarfile.GNU_FORMAT) + manifest.ljust(-(-len(manifest) // 512) * 512, b"\0")
        )
        file.write(_entry(FILE_NAME, size=size)[0].tobuf(tarfile.GNU_FORMAT))
        for _ in range(1024):
            file.write(bytes(1 << 20))

    with pytest.raises(BadBackup, match="larger than its manifest says"):
        restore_to(tmp_path / "restored", source)

    assert source.stat().st_size < 200_000


@pytest.mark.parametrize("part", [0, 10, 1_000, -10])
def test_a_truncated_archive_is_refused(archive: Path, tmp_path: Path, part: int) -> None:
    source = tmp_path / "short.tar.zst"
    source.write_bytes(archive.read_bytes()[:part])

    with pytest.raises(BadBackup, match="no whole backup"):
        restore_to(tmp_path / "restored", source)

    assert names_in(tmp_path) == {"short.tar.zst"}


def test_another_file_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "text.tar.zst").write_text("not an archive at all")

    with pytest.raises(BadBackup, match="no whole backup"):
        restore_to(tmp_path / "restored", tmp_path / "text.tar.zst")


def test_a_clock_that_is_behind_is_refused(tmp_path: Path) -> None:
    data = make_store(tmp_path / "data")
    back_up(data, tmp_path / "later", now=SystemClock().now() + timedelta(hours=1))

    with pytest.raises(BadBackup, match="set the clock"):
        restore_to(tmp_path / "restored", tmp_path / "later")


def test_an_epoch_that_the_clock_has_not_reached_is_refused(tmp_path: Path) -> None:
    data = make_store(tmp_path / "data")
    execute(data / FILE_NAME, "UPDATE meta SET value = 2000000000 WHERE name = 'epoch'")
    back_up(data, tmp_path / "backup")

    with pytest.raises(BadBackup, match="set the clock"):
        restore_to(tmp_path / "restored", tmp_path / "backup")


def test_a_database_that_is_damaged_with_a_right_checksum_is_refused(
    backup: Path, tmp_path: Path
) -> None:
    source = copy_of(backup, tmp_path)
    path = source / FILE_NAME
    path.write_bytes(path.read_bytes()[:-4096] + b"\xff" * 4096)
    names = ("manifest.json", FILE_NAME, _blob(source).relative_to(source).as_posix())
    (source / "checksums.sha256").write_text(
        "".join(f"{sha256((source / n).read_bytes()).hexdigest()}  {n}\n" for n in names)
    )

    with pytest.raises(BadBackup, match="is damaged"):
        restore_to(tmp_path / "restored", source)


def test_an_older_schema_is_upgraded_in_the_restored_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    path = data / FILE_NAME
    path.touch()
    execute(path, "PRAGMA auto_vacuum=INCREMENTAL")
    execute(path, store_file.migrations()[0][1])
    execute(path, f"PRAGMA application_id={store_file.APPLICATION_ID}")
    execute(path, "PRAGMA user_version=1")
    back_up(data, tmp_path / "backup")

    restore_to(tmp_path / "restored", tmp_path / "backup")

    restored = tmp_path / "restored" / FILE_NAME
    assert select(restored, "PRAGMA user_version") == store_file.migrations()[-1][0]
    assert not (tmp_path / "restored" / "upgrades").exists()
