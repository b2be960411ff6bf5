"""Opens the database file: checks it, migrates its schema, and counts the boots of the machine.

A file that is damaged, of a newer version, or of another program is refused and not changed. The
*epoch* counts the boots that this file has seen. After a power loss, claims that were not yet on
disk are lost, and a fence that was issued by one of them must never be issued again.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.errors import text_of
from longshore.errors import BackendRejected, BackendUnavailable, StoreCorrupt, StoreTooNew

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
            _migrate(connection, path)
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


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """Refuse a file of another program or of a newer version; migrate an older one."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    tables = rows(connection, "SELECT count(*) FROM sqlite_schema")[0][0]
    if application != APPLICATION_ID and (application or tables):
        raise BackendRejected(f"{path} is a SQLite file of another program; nothing was changed")
    available = migrations()
    supported = available[-1][0]
    if version > supported:
        raise StoreTooNew(str(path), version, supported)
    # After a power loss during its creation, the file is empty and in another mode.
    connection.execute("PRAGMA journal_mode=WAL")
    for number, sql in available:
        if number > version:
            with connection:
                connection.execute(sql)
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version={number}")
                reach("store.migrating")
            reach("store.migrated")


# SQLite does not write a page for a row that is replaced by itself.
TEST_WRITE = "INSERT INTO meta VALUES ('test_write', ''); DELETE FROM meta WHERE name='test_write'"
"""Writes a page of the file, and in one transaction changes nothing."""


def _current_epoch(connection: apsw.Connection) -> int:
    boot = _boot_id()
    meta: dict[str, str] = dict(rows(connection, "SELECT name, value FROM meta"))
    epoch = int(meta.get("epoch", "0"))
    if meta.get("boot_id") != boot:
        epoch += 1
        with connection:
            for pair in (("boot_id", boot), ("epoch", str(epoch))):
                connection.execute("INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", pair)
            connection.execute(_SKIP_POSITIONS)
            reach("store.epoch_raising")
        reach("store.epoch_raised")
    return epoch


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
