"""Upgrades: the file is copied first, and no process of another version writes to it."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.store_file import FILE_NAME
from longshore.adapters.sqlite.writer import EXIT_CODE_WITHOUT_WRITER
from longshore.errors import BackendUnavailable, StoreInUse, StoreTooNew
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from tests.adapters.sqlite.backup_stores import (
    KILLED,
    execute,
    fill,
    killed_at,
    make_store,
    names_in,
    select,
)

NEWEST = store_file.migrations()[-1][0]
LATER = (NEWEST + 1, "CREATE TABLE later (x INTEGER) STRICT;")
COPY = f"schema-{NEWEST}.db"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "data")


@pytest.fixture
def newer_version(store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The store is there, and this version has one more migration."""
    assert schema_of(store / FILE_NAME) == NEWEST
    newer = [*store_file.migrations(), LATER]
    with monkeypatch.context() as patch:
        patch.setattr(store_file, "migrations", lambda: newer)
        yield


def schema_of(path: Path) -> int:
    return int(select(path, "PRAGMA user_version"))


@pytest.mark.usefixtures("newer_version")
def test_an_older_file_is_copied_before_it_is_migrated(store: Path) -> None:
    jobs = select(store / FILE_NAME, "SELECT count(*) FROM jobs")

    store_file.prepare(store)

    copy = store / "upgrades" / COPY
    assert schema_of(store / FILE_NAME) == NEWEST + 1
    assert schema_of(copy) == NEWEST
    assert select(copy, "SELECT count(*) FROM jobs") == jobs
    assert copy.stat().st_mode & 0o077 == 0
    assert names_in(store / "upgrades") == {COPY}


def test_a_new_file_is_not_copied(tmp_path: Path) -> None:
    store_file.prepare(tmp_path)
    store_file.prepare(tmp_path)

    assert not (tmp_path / "upgrades").exists()


@pytest.mark.usefixtures("newer_version")
def test_a_file_that_another_process_has_open_is_not_migrated(store: Path) -> None:
    before = (store / FILE_NAME).read_bytes()
    wakeups = store / "wakeups"
    for name in ("4711-dead", f"{os.getpid()}-alive"):
        os.mkfifo(wakeups / name)
    reader = os.open(wakeups / f"{os.getpid()}-alive", os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(StoreInUse) as refused:
            store_file.prepare(store)
    finally:
        os.close(reader)

    (process,) = refused.value.processes
    assert process.startswith(f"{os.getpid()} (")
    assert f"from schema {NEWEST} to {NEWEST + 1}" in str(refused.value)
    assert (store / FILE_NAME).read_bytes() == before
    assert not (store / "upgrades").exists()
    store_file.prepare(store)  # it has ended
    assert schema_of(store / FILE_NAME) == NEWEST + 1


@pytest.mark.usefixtures("newer_version")
def test_a_disk_without_room_for_the_copy_is_named_and_nothing_is_changed(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage(NamedTuple):
        free: int

    before = (store / FILE_NAME).read_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1_000))

    with pytest.raises(BackendUnavailable, match=r"was not changed: disk full: .* free that space"):
        store_file.prepare(store)

    assert (store / FILE_NAME).read_bytes() == before
    assert names_in(store / "upgrades") == set()


@pytest.mark.usefixtures("newer_version")
def test_only_the_last_copies_are_kept(store: Path) -> None:
    (store / "upgrades").mkdir()
    for schema in (NEWEST - 2, NEWEST - 1):
        (store / "upgrades" / f"schema-{schema}.db").touch()

    store_file.prepare(store)

    assert names_in(store / "upgrades") == {f"schema-{NEWEST - 1}.db", COPY}


def test_a_downgrade_is_refused_and_names_the_copy(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = [*store_file.migrations(), LATER]
    with monkeypatch.context() as patch:
        patch.setattr(store_file, "migrations", lambda: newer)
        store_file.prepare(store)

    with pytest.raises(StoreTooNew) as refused:
        store_file.prepare(store)

    copy = store / "upgrades" / COPY
    assert refused.value.copy == str(copy)
    assert str(copy) in str(refused.value)
    # The way back.
    (store / FILE_NAME).unlink()
    copy.rename(store / FILE_NAME)
    store_file.prepare(store)


@pytest.mark.usefixtures("newer_version")
@pytest.mark.parametrize(
    "point",
    [
        *("store.upgrade_copied", "store.upgraded_copy_named", "store.migrating"),
        "store.migrated",
    ],
)
def test_an_upgrade_that_is_killed_is_repeated(store: Path, point: str) -> None:
    assert killed_at(point, lambda: store_file.prepare(store)) == KILLED

    store_file.prepare(store)

    assert schema_of(store / FILE_NAME) == NEWEST + 1
    assert schema_of(store / "upgrades" / COPY) == NEWEST
    assert names_in(store / "upgrades") == {COPY}


def test_a_process_whose_file_was_migrated_ends_and_writes_nothing(
    store: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def use() -> None:
        async with sqlite_backend(store, FakeClock(START)) as backend:
            execute(store / FILE_NAME, f"PRAGMA user_version={NEWEST + 1}")
            await fill(backend, "second")

    child = os.fork()
    if child == 0:
        try:
            asyncio.run(use())
        finally:
            os._exit(99)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert ended == EXIT_CODE_WITHOUT_WRITER
    assert (
        f"to schema {NEWEST + 1}, and this process knows schema {NEWEST}" in capfd.readouterr().err
    )
    assert select(store / FILE_NAME, "SELECT count(*) FROM jobs WHERE version > 0") == 1
