"""Opens the database file: checks it, migrates its schema, and counts the boots of the machine.

A file that is damaged, of a newer version, or of another program is refused and not changed. An
older file is copied before it is migrated, and only while no other process has it open: a process
of the older version would go on writing what the new schema does not expect.

The *epoch* counts the boots that this file has seen. After a power loss, claims that were not yet
on disk are lost, and a fence that was issued by one of them must never be issued again. The same
holds for positions of the feed, so each epoch begins behind a gap, and where the epochs before it
ended is recorded: a cursor from behind such an end names events that do not exist.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.errors import text_of
from longshore.adapters.sqlite.notifier import live_processes
from longshore.errors import (
    BackendRejected,
    BackendUnavailable,
    StoreCorrupt,
    StoreInUse,
    StoreTooNew,
)

APPLICATION_ID = 0x4C4E4753  # "LNGS"
FILE_NAME = "longshore.db"

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MOUNTS = Path("/proc/self/mountinfo")
BUSY_TIMEOUT_MS = 30_000
NETWORK_FILE_SYSTEMS = {
    *("nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "afs", "ceph", "glusterfs", "lustre", "9p"),
    *("davfs", "fuse.glusterfs", "fuse.sshfs", "fuse.s3fs", "fuse.rclone", "fuse.davfs2"),
}

# More positions of the feed than a power loss can lose: none of them is ever issued again.
_SKIP_POSITIONS = (
    "INSERT INTO feed (position, entries) SELECT max(position) + (1 << 24), x'90' FROM feed"
    " HAVING max(position) IS NOT NULL"
)

_EPOCH_END = "epoch_end."  # and an epoch: the name of its last position in the table ``meta``
_UPGRADES_FOLDER = "upgrades"
_KEPT_COPIES = 2  # of files before a migration
_COPY_PAGES = 4096  # in one step
_MIN_FREE_BYTES = 16 << 20  # that a copy leaves

Row = tuple[Any, ...]
Bindings = Sequence[Any] | Mapping[str, Any]


def rows(connection: apsw.Connection, sql: str, values: Bindings = ()) -> list[Row]:
    """All rows of a statement. Fetching all of them ends it, so that no read stays open."""
    return connection.execute(sql, values).fetchall()


def connect(path: Path, *pragmas: str, read_only: bool = False) -> apsw.Connection:
    """A connection with the pragmas that every connection has, and those for this one."""
    access = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE
    connection = apsw.Connection(str(path), flags=access | apsw.SQLITE_OPEN_NOMUTEX)
    connection.set_busy_timeout(BUSY_TIMEOUT_MS)
    # Otherwise SQLite prepares a statement again for each new value of a range.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    connection.execute("PRAGMA synchronous=FULL; PRAGMA trusted_schema=OFF")
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def prepare(folder: Path) -> int:
    """Create or check the file, migrate it, and return its epoch; under the write lock."""
    kind = file_system_of(folder)
    if kind in NETWORK_FILE_SYSTEMS:
        raise BackendRejected(
            f"{folder} is on a network file system ({kind}), where SQLite's locks cannot be "
            "trusted; choose a data folder on a local disk"
        )
    path = folder / FILE_NAME
    try:
        if not path.exists() or path.stat().st_size == 0:
            _create(folder, path)
        with contextlib.closing(connect(path)) as connection:
            migrate(connection, path)
            return _current_epoch(connection)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorrupt(str(path), str(error)) from error
    except apsw.Error as error:
        raise BackendUnavailable(f"cannot open {path}: {text_of(error, folder)}") from error


def migrations() -> list[tuple[int, str]]:
    """The number and the SQL of every migration, in order."""
    return sorted(
        (int(matched[1]), entry.read_text())
        for entry in resources.files("longshore.adapters.sqlite.schema").iterdir()
        if (matched := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name))
    )


def file_system_of(folder: Path) -> str | None:
    """The type of the file system of a folder; None if it is unknown."""
    if not _MOUNTS.exists():
        return None
    best, kind = "", None
    path = str(folder.resolve())
    for line in _MOUNTS.read_text().splitlines():
        before, _, after = line.partition(" - ")
        mount = before.split()[4].replace("\\040", " ")
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, after.split()[0]
    return kind


def _create(folder: Path, path: Path) -> None:
    if path.exists() and any((folder / "blobs").glob("*/*")):
        raise StoreCorrupt(str(path), "the file is empty, but the folder has been used")
    for parent in _new_parents(folder):
        # SQLite syncs the folder, but not its name in the parent folder.
        sync_folder(parent)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    connection = apsw.Connection(str(path), flags=flags)
    path.chmod(0o600)
    reach("store.file_created")
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")  # before anything is written
    connection.execute("PRAGMA journal_mode=WAL")
    reach("store.wal_enabled")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.close()
    reach("store.created")


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _new_parents(folder: Path) -> Iterator[Path]:
    """Parent folders that may be new too: readable ones on the same file system."""
    device = folder.stat().st_dev
    for parent in folder.resolve().parents:
        if parent.stat().st_dev != device or not os.access(parent, os.R_OK):
            return
        yield parent


def check_schema(connection: apsw.Connection, path: Path) -> int:
    """Refuse a file of another program or of a newer version. Returns its schema's version."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    tables = rows(connection, "SELECT count(*) FROM sqlite_schema")[0][0]
    if application != APPLICATION_ID and (application or tables):
        raise BackendRejected(f"{path} is a SQLite file of another program; nothing was changed")
    if version > (supported := migrations()[-1][0]):
        copies = [
            copy for schema, copy in copies_before_upgrade(path.parent) if schema <= supported
        ]
        raise StoreTooNew(str(path), version, supported, str(copies[-1]) if copies else None)
    return int(version)


def migrate(connection: apsw.Connection, path: Path, *, copy: bool = True) -> None:
    """Migrate an older file, and copy it before.

    Args:
        copy: False: the file is itself a copy, which is not in use.

    Raises:
        StoreInUse: other processes have the file open.
        BackendUnavailable: there is no room for the copy.
    """
    version = check_schema(connection, path)
    pending = [(number, sql) for number, sql in migrations() if number > version]
    if version and pending and copy:
        if processes := live_processes(path.parent):
            raise StoreInUse(str(path), version, pending[-1][0], processes)
        _copy_before_upgrade(path, version)
    # After a power loss during its creation, the file is empty and in another mode.
    connection.execute("PRAGMA journal_mode=WAL")
    for number, sql in pending:
        with connection:
            connection.execute(sql)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={number}")
            reach("store.migrating")
        reach("store.migrated")


def copies_before_upgrade(folder: Path) -> list[tuple[int, Path]]:
    """The copies of the file from before it was migrated, by schema, the newest of each last."""
    names = sorted((folder / _UPGRADES_FOLDER).glob("schema-*.db"), key=os.path.getmtime)
    copies = [(int(path.stem.split("-")[1]), path) for path in names]
    return sorted(copies, key=lambda copy: copy[0])


def _copy_before_upgrade(path: Path, version: int) -> None:
    folder = path.parent / _UPGRADES_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    target, draft = folder / f"schema-{version}.db", folder / "draft"
    draft.unlink(missing_ok=True)
    try:
        copy_database(path, draft)
        reach("store.upgrade_copied")
        draft.rename(target)
        reach("store.upgraded_copy_named")
    except BackendUnavailable as error:
        remedy = "it is copied before it is upgraded; free that space and try again"
        raise BackendUnavailable(f"{path} was not changed: {error}; {remedy}") from error
    finally:
        draft.unlink(missing_ok=True)
    for _, older in copies_before_upgrade(path.parent)[:-_KEPT_COPIES]:
        older.unlink()
    sync_folder(folder)
    sync_folder(path.parent)


def copy_database(
    source: Path, target: Path, report: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Copy a database as it is at one moment, while other processes write; then check the copy.

    One read transaction sees one moment, however long it lasts and however many steps the copy has.

    Args:
        report: Takes how many bytes are copied, and of how many.

    Raises:
        BackendUnavailable: the disk is full.
        StoreCorrupt: the file is damaged.
    """
    size = sum(file.stat().st_size for file in (source, Path(f"{source}-wal")) if file.exists())
    check_free_space(target.parent, size)
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    try:
        with (
            contextlib.closing(connect(source, read_only=True)) as live,
            contextlib.closing(apsw.Connection(str(target), flags=flags)) as copy,
        ):
            target.chmod(0o600)
            copy.execute("PRAGMA synchronous=FULL")
            live.execute("BEGIN")
            page_size = live.pragma("page_size")
            rows(live, "SELECT count(*) FROM sqlite_schema")  # the transaction begins to read
            with copy.backup("main", live, "main") as backup:
                while not backup.done:
                    backup.step(_COPY_PAGES)
                    total = backup.page_count
                    report((total - backup.remaining) * page_size, total * page_size)
            live.execute("COMMIT")
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
            check_integrity(copy, source)
    except (apsw.NotADBError, apsw.CorruptError) as error:
        raise StoreCorrupt(str(source), str(error)) from error
    except apsw.Error as error:
        raise BackendUnavailable(f"{source}: {text_of(error, target.parent)}") from error
    sync_folder(target.parent)


def check_integrity(connection: apsw.Connection, path: Path) -> None:
    """Check a file as ``longshore doctor`` does.

    Raises:
        StoreCorrupt: it is damaged.
    """
    results = [str(row[0]) for row in rows(connection, "PRAGMA quick_check(5)")]
    if results != ["ok"]:
        raise StoreCorrupt(str(path), "; ".join(results))


def check_free_space(folder: Path, size: int) -> None:
    """Check that the disk of a folder has room for so many bytes.

    Raises:
        BackendUnavailable: it has not.
    """
    free = shutil.disk_usage(folder).free
    if free < size + _MIN_FREE_BYTES:
        needed = f"{size + _MIN_FREE_BYTES:,} bytes are needed"
        raise BackendUnavailable(f"disk full: {folder} has {free:,} bytes free, and {needed}")


# SQLite does not write a page for a row that is replaced by itself.
TEST_WRITE = "INSERT INTO meta VALUES ('test_write', ''); DELETE FROM meta WHERE name='test_write'"
"""Writes a page of the file, and in one transaction changes nothing."""


def _current_epoch(connection: apsw.Connection) -> int:
    stored_boot, epoch = stored_epoch(connection)
    if stored_boot != _boot_id():
        epoch += 1
        begin_epoch(connection, epoch)
    return epoch


def stored_epoch(connection: apsw.Connection) -> tuple[str | None, int]:
    """The boot of the machine that the file was last opened in, and the epoch; 0: there is none."""
    meta: dict[str, str] = dict(rows(connection, "SELECT name, value FROM meta"))
    return meta.get("boot_id"), int(meta.get("epoch", "0"))


def epoch_ends(path: Path) -> dict[int, int]:
    """The last position of each epoch that has ended, since ends are recorded."""
    with contextlib.closing(connect(path, "query_only=ON")) as connection:
        meta = rows(connection, "SELECT name, value FROM meta")
    return {
        int(name.removeprefix(_EPOCH_END)): int(value)
        for name, value in meta
        if name.startswith(_EPOCH_END)
    }


def begin_epoch(connection: apsw.Connection, epoch: int) -> None:
    """Begin a later epoch, and record where the last one ended."""
    _, before = stored_epoch(connection)
    with connection:
        ((last,),) = rows(connection, "SELECT coalesce(max(position), 0) FROM feed")
        for pair in (
            ("boot_id", _boot_id()),
            ("epoch", str(epoch)),
            (f"{_EPOCH_END}{before}", str(last)),
        ):
            connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", pair)
        connection.execute(_SKIP_POSITIONS)
        reach("store.epoch_raising")
    reach("store.epoch_raised")


def _boot_id() -> str:
    """An id that changes with each boot of the machine."""
    if _BOOT_ID.exists():
        return _BOOT_ID.read_text().strip()
    # macOS has no such file, but its kernel has the same kind of id.
    completed = subprocess.run(
        ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"],
        capture_output=True,
        text=True,
        check=True,
    )
    return completed.stdout.strip()
