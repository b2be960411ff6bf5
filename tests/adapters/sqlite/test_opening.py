"""Opening a data folder: what is refused, what is brought up to date, what is counted."""

import asyncio
import re
from pathlib import Path

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.errors import BackendRejected, StoreCorrupt, StoreTooNew
from longshore.testing.clock import FakeClock


def prepare(folder: Path) -> int:
    return store_file.prepare(folder)


def schema_of(path: Path) -> list[tuple[str, ...]]:
    connection = apsw.Connection(str(path))
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
    connection.close()
    return [(kind, name, re.sub(r"\s+", " ", sql or "")) for kind, name, sql in rows]


def test_a_fresh_file_and_one_migrated_step_by_step_have_the_same_schema(tmp_path: Path) -> None:
    fresh, stepped = tmp_path / "fresh", tmp_path / "stepped"
    fresh.mkdir()
    stepped.mkdir()
    prepare(fresh)
    by_hand = apsw.Connection(str(stepped / store_file.FILE_NAME))
    by_hand.execute("PRAGMA journal_mode=WAL")
    for number, sql in store_file.migrations():
        by_hand.execute(sql)
        by_hand.execute(f"PRAGMA user_version={number}")
    by_hand.close()

    assert schema_of(fresh / store_file.FILE_NAME) == schema_of(stepped / store_file.FILE_NAME)


def test_the_numbers_of_the_migrations_have_no_gap() -> None:
    numbers = [number for number, _ in store_file.migrations()]

    assert numbers == list(range(1, len(numbers) + 1))


def test_an_older_file_is_brought_up_to_date(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / store_file.FILE_NAME
    path.unlink()
    old = apsw.Connection(str(path))
    old.execute("PRAGMA journal_mode=WAL")
    old.execute(f"PRAGMA application_id={store_file.APPLICATION_ID}")
    old.close()

    prepare(tmp_path)

    tables = {name for kind, name, _ in schema_of(path) if kind == "table"}
    assert {"jobs", "tasks", "feed", "workers", "output", "blobs"} <= tables


def test_a_file_from_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / store_file.FILE_NAME
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA user_version=9999")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(StoreTooNew) as refused:
        prepare(tmp_path)

    assert (refused.value.schema, path.read_bytes()) == (9999, before)
    assert "Upgrade Longshore" in str(refused.value)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"this is not a database" * 200, id="not a database at all"),
        pytest.param(lambda data: data[:16] + b"\xff" * 84 + data[100:], id="header"),
        pytest.param(lambda data: data[:4096] + b"\x00" * (len(data) - 4096), id="pages zeroed"),
    ],
)
def test_a_damaged_file_is_named_and_never_recreated(tmp_path: Path, damage) -> None:
    prepare(tmp_path)
    path = tmp_path / store_file.FILE_NAME
    path.write_bytes(damage(path.read_bytes()))
    before = path.read_bytes()

    with pytest.raises(StoreCorrupt) as refused:
        prepare(tmp_path)

    assert str(path) in str(refused.value)
    assert path.read_bytes() == before


def test_an_empty_file_in_a_folder_that_was_used_is_damage(tmp_path: Path) -> None:
    (tmp_path / "blobs" / "ab").mkdir(parents=True)
    (tmp_path / "blobs" / "ab" / "abcd").write_bytes(b"x")
    (tmp_path / store_file.FILE_NAME).touch()

    with pytest.raises(StoreCorrupt):
        prepare(tmp_path)


def test_an_empty_file_left_by_a_crash_at_birth_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / store_file.FILE_NAME).touch()

    assert prepare(tmp_path) == 1


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()

    with pytest.raises(BackendRejected, match="another program"):
        prepare(tmp_path)


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n"
        f"40 27 0:50 / {tmp_path} rw,relatime - nfs4 server:/export rw\n"
    )
    monkeypatch.setattr(store_file, "_MOUNTS", mounts)

    with pytest.raises(BackendRejected, match="nfs4"):
        prepare(tmp_path)

    assert not (tmp_path / store_file.FILE_NAME).exists()


def test_the_epoch_grows_with_each_boot_and_only_then(tmp_path: Path, monkeypatch) -> None:
    boot = tmp_path / "boot_id"
    monkeypatch.setattr(store_file, "_BOOT_ID", boot)

    epochs = []
    for name in ("first", "first", "second", "second", "first"):
        boot.write_text(name)
        epochs.append(prepare(tmp_path))

    assert epochs == [1, 1, 2, 2, 3]


def test_the_file_and_its_folder_are_for_their_owner_only(tmp_path: Path) -> None:
    async def open_and_close() -> None:
        async with sqlite_backend(tmp_path / "data", FakeClock()):
            pass

    asyncio.run(open_and_close())

    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
    assert (tmp_path / "data" / store_file.FILE_NAME).stat().st_mode & 0o077 == 0
