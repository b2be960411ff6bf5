"""Restores a backup: reads it, checks everything in it, and only then gives the folder its name.

A backup may have been changed, also on purpose. Its entries are regular files with the names that a
backup has and nothing else, there are as many of them and they are as large as its manifest says,
and each has its checksum. That proves that it is whole, not who made it.

The restored store begins a new epoch. The store that was backed up may have gone on since, and been
restored before: none of its fences may be issued again. Epochs are counted by boots, of which there
is at most one in a second, or come from the clock: the epoch of a restore is the number of seconds
since 2025, so it is above all that were issued before, if clocks are right.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backups.backup import (
    CHECKSUMS,
    FORMAT,
    MANIFEST,
    disk_errors,
    draft_folder,
    publish_folder,
    read_archive,
    write_file,
)
from longshore.adapters.sqlite.blob_files import FOLDER_MODE, file_path
from longshore.adapters.sqlite.store_file import FILE_NAME, rows, sync_folder
from longshore.core.inspection import BackupFacts, ReportBytes
from longshore.errors import BackendRejected, NotFound, StoreCorrupt, UsageError

_EPOCHS_SINCE = datetime(2025, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_MAX_CLOCK_ERROR = timedelta(minutes=5)
_MAX_MANIFEST_BYTES = 64 << 10
_MAX_LINE_BYTES = 120  # of the checksums
_BLOB_NAME = re.compile(r"blobs/([0-9a-f]{2})/\1[0-9a-f]{30}", re.ASCII)
_CHECKSUM = re.compile(r"([0-9a-f]{64})  ([a-z0-9./_-]{1,50})", re.ASCII)


class BadBackup(BackendRejected):
    """The source is not a backup, or not a whole one; nothing was restored."""


@contextlib.contextmanager
def restored(
    source: Path, folder: Path, *, now: datetime, report: ReportBytes
) -> Iterator[tuple[Path, BackupFacts, int]]:
    """Restore a backup into a draft, which becomes ``folder`` at the end of the block.

    Returns the draft, what is in the backup, and the new epoch.

    Args:
        folder: It must not exist, or be empty.

    Raises:
        NotFound: there is no such backup.
        UsageError: the folder cannot be used.
        BackendRejected: the backup is damaged, or of a newer version.
        BackendUnavailable: the disk is full, or cannot be written.
    """
    check_folder(folder)
    with disk_errors(folder), draft_folder(folder.parent) as draft, _entries(source) as entries:
        content = draft / "content"
        content.mkdir(mode=FOLDER_MODE)
        try:
            facts = _Reader(source, content, now).read(entries, report)
            epoch = _prepare_database(source, content, facts, now=now)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise BadBackup(f"{source} is damaged: its database: {error}") from error
        reach("restore.prepared")
        yield content, facts, epoch
        for path, _, _ in os.walk(content):
            sync_folder(Path(path))
        check_folder(folder)
        publish_folder(content, folder)


def check_folder(folder: Path) -> None:
    """Check that a backup can be restored to a folder.

    Raises:
        UsageError: it cannot.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(f"{folder} is not a folder; choose another data folder with --data-dir")
    if folder.is_dir() and any(folder.iterdir()):
        raise UsageError(
            f"{folder} is not empty, and a restore replaces nothing; move it aside, or choose"
            " another data folder with --data-dir"
        )
    if not folder.parent.is_dir():
        raise UsageError(f"{folder.parent} is not a folder; create it first")
    if (kind := store_file.file_system_of(folder.parent)) in store_file.NETWORK_FILE_SYSTEMS:
        raise UsageError(f"{folder} is on a network file system ({kind}); choose a local disk")


@dataclass(frozen=True, slots=True)
class _BackupEntry:
    name: str
    size: int
    file: Any  # has ``read``


@contextlib.contextmanager
def _entries(source: Path) -> Iterator[Iterator[_BackupEntry]]:
    """The files of a backup, in the order in which they were written."""
    if source.is_dir():
        yield _folder_entries(source)
        return
    try:
        file = source.open("rb")
    except FileNotFoundError:
        raise NotFound("backup", str(source)) from None
    try:
        with file, read_archive(file) as stream:
            yield _archive_entries(source, stream)
    except (tarfile.TarError, EOFError) as error:
        raise BadBackup(f"{source} is no whole backup: {error}") from error


def _folder_entries(source: Path) -> Iterator[_BackupEntry]:
    paths = sorted(path for path in source.rglob("*") if path.is_symlink() or not path.is_dir())
    names = {path.relative_to(source).as_posix(): path for path in paths}
    first = [name for name in (MANIFEST,) if name in names]
    last = [name for name in (CHECKSUMS,) if name in names]
    for name in (*first, *(n for n in names if n not in (MANIFEST, CHECKSUMS)), *last):
        path = names[name]
        if path.is_symlink() or not path.is_file():
            raise BadBackup(f"{source} has an entry that no backup has: {name!r} is no file")
        with path.open("rb") as file:
            yield _BackupEntry(name, path.stat().st_size, file)


class _PlainEntry(tarfile.TarInfo):
    """Refuses all but regular files, before anything of their content is read into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        entry = super().frombuf(buf, encoding, errors)
        if entry.type != tarfile.REGTYPE:
            message = f"it has an entry that no backup has: {entry.name!r} is no regular file"
            raise tarfile.ReadError(message)
        return entry


def _archive_entries(source: Path, stream: Any) -> Iterator[_BackupEntry]:
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=_PlainEntry) as archive:
        try:
            for entry in archive:
                yield _BackupEntry(entry.name, entry.size, archive.extractfile(entry))
        except ValueError as error:
            raise BadBackup(f"{source} is no whole backup: {error}") from error


@dataclass(frozen=True, slots=True)
class _Reader:
    """Copies a backup into a folder, and checks it."""

    source: Path
    folder: Path
    now: datetime

    def read(self, entries: Iterator[_BackupEntry], report: ReportBytes) -> BackupFacts:
        """Copy all files. Returns the manifest."""
        first = next(entries, None)
        if first is None or first.name != MANIFEST:
            raise BadBackup(f"{self.source} is no whole backup: it has no {MANIFEST}")
        facts, checksum = self._read_manifest(first)
        store_file.check_free_space(self.folder, facts.size_bytes)
        checksums, done = {MANIFEST: checksum}, 0
        for entry in entries:
            if entry.name == CHECKSUMS:
                self._check(checksums, entry, facts)
                if done != facts.size_bytes or len(checksums) != facts.blobs + 2:
                    self._refuse("it has other files than its manifest says")
                if (more := next(entries, None)) is not None:
                    self._refuse(f"{more.name!r} comes after its end")
                return facts
            if entry.name in checksums or not self._is_known(entry.name):
                self._refuse(f"it has an entry that no backup has: {entry.name!r}")
            done += entry.size
            if done > facts.size_bytes or len(checksums) > facts.blobs + 1:
                self._refuse("it is larger than its manifest says")
            checksums[entry.name] = write_file(self.folder / entry.name, entry.file, entry.size)
            report(done, facts.size_bytes)
            reach("restore.file_copied")
        raise BadBackup(f"{self.source} is no whole backup: it has no {CHECKSUMS}")

    def _refuse(self, problem: str) -> None:
        raise BadBackup(f"{self.source} was changed after it was made: {problem}")

    @staticmethod
    def _is_known(name: str) -> bool:
        return name == FILE_NAME or _BLOB_NAME.fullmatch(name) is not None

    def _read_manifest(self, entry: _BackupEntry) -> tuple[BackupFacts, str]:
        if entry.size > _MAX_MANIFEST_BYTES:
            raise BadBackup(f"{self.source} is no backup: its {MANIFEST} is too large")
        text = entry.file.read(entry.size)
        checksum = hashlib.sha256(text).hexdigest()
        try:
            values = json.loads(text)
            supported = store_file.migrations()[-1][0]
            if values.pop("format") != FORMAT or values["schema"] > supported:
                raise BadBackup(f"{self.source} was made by a newer version; upgrade Longshore")
            values["created_at"] = datetime.fromisoformat(values["created_at"])
            if set(values) != {field.name for field in fields(BackupFacts)}:
                raise ValueError
            numbers = [v for k, v in values.items() if k not in ("created_at", "version")]
            if any(type(number) is not int or not 0 <= number < 2**62 for number in numbers):
                raise ValueError
            facts = BackupFacts(**values)
            late = facts.created_at - self.now
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadBackup(f"{self.source} is no backup: its {MANIFEST} is not valid") from error
        if late > _MAX_CLOCK_ERROR:
            raise _wrong_clock(self.source, facts.created_at, self.now)
        return facts, checksum

    def _check(self, checksums: dict[str, str], entry: _BackupEntry, facts: BackupFacts) -> None:
        if entry.size > (facts.blobs + 2) * _MAX_LINE_BYTES:
            self._refuse(f"its {CHECKSUMS} is too large")
        lines = entry.file.read(entry.size).decode(errors="replace").splitlines()
        matches = [_CHECKSUM.fullmatch(line) for line in lines]
        expected = {match[2]: match[1] for match in matches if match is not None}
        if None in matches or len(expected) != len(lines) or expected.keys() != checksums.keys():
            self._refuse(f"its {CHECKSUMS} names other files")
        for name, checksum in checksums.items():
            if expected[name] != checksum:
                raise BadBackup(f"{self.source} is damaged: the checksum of {name} is wrong")


def _prepare_database(source: Path, folder: Path, facts: BackupFacts, *, now: datetime) -> int:
    """Check the database and begin a new epoch. Returns the epoch."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise BadBackup(f"{source} is no whole backup: it has no {FILE_NAME}")
    with contextlib.closing(store_file.connect(path)) as connection:
        if connection.pragma("user_version") != facts.schema:
            raise BadBackup(f"{source} was changed after it was made: its schema is another one")
        try:
            store_file.check_integrity(connection, path)
        except StoreCorrupt as error:
            raise BadBackup(f"{source} is damaged: {error.detail}") from error
        named = rows(connection, "SELECT file, size FROM blobs WHERE file IS NOT NULL")
        blobs = [(file_path(folder, file), size) for file, size in named]
        if (
            sum(blob.is_file() and blob.stat().st_size == size for blob, size in blobs)
            < facts.blobs
        ):
            raise BadBackup(f"{source} was changed after it was made: it has other blobs")
        store_file.migrate(connection, path, copy=False)
        _, before = store_file.stored_epoch(connection)
        epoch: int = (now - _EPOCHS_SINCE) // _SECOND
        if epoch <= before:
            raise _wrong_clock(source, _EPOCHS_SINCE + before * _SECOND, now)
        store_file.begin_epoch(connection, epoch)
    path.chmod(0o600)
    return epoch


def _wrong_clock(source: Path, made_at: datetime, now: datetime) -> BadBackup:
    return BadBackup(
        f"{source} was made at {made_at:%Y-%m-%d %H:%M:%S} UTC, and the clock of this machine shows"
        f" {now:%Y-%m-%d %H:%M:%S}; set the clock, because the fences that a restored store issues"
        " depend on it"
    )


def moment_after(epoch: int) -> datetime:
    """When another restore gets a later epoch than this one."""
    return _EPOCHS_SINCE + (epoch + 1) * _SECOND
