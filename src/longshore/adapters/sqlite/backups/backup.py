"""Backups: a copy of the database at one moment, and the files of its blobs.

A file of a blob is durable before the row that names it, so files that are copied after the
database are complete, as long as nothing removes them meanwhile (see ``blob_files``).

A backup is a folder or an archive with the same files::

    manifest.json     what is in the backup
    longshore.db      the database
    blobs/ab/ab…      the files of its large blobs
    checksums.sha256  of all of these, as ``sha256sum --check`` reads them; written last

It is made under another name, made durable, and then renamed. A backup that was interrupted has
neither its name nor its checksums. The API key of the machine is not in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import json
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.blob_files import FOLDER_MODE, Pause, file_path, pause_removal
from longshore.adapters.sqlite.rows import unpack_job_id
from longshore.adapters.sqlite.store_file import FILE_NAME, rows, sync_folder
from longshore.core.documents import job_blob_prefixes
from longshore.core.inspection import BackupFacts, ReportBytes
from longshore.errors import BackendUnavailable, NotFound, UsageError

FORMAT = 1
MANIFEST, CHECKSUMS = "manifest.json", "checksums.sha256"
ARCHIVE_SUFFIX = ".tar.zst"
_OTHER_ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip", ".zst")
_DRAFT_PREFIX = ".longshore-draft-"
_CHUNK_BYTES = 1 << 20


def make_backup(
    folder: Path, target: Path, *, now: datetime, version: str, report: ReportBytes
) -> BackupFacts:
    """Back up the store in ``folder`` while it is used.

    Args:
        target: The folder, or the archive (``….tar.zst``), to create.
        version: The version of Longshore.

    Raises:
        NotFound: there is no store.
        UsageError: the target cannot be used.
        CommandRefused: another backup of this store is under way.
        BackendUnavailable: the disk is full, or cannot be written.
        StoreCorrupt: the database is damaged.
    """
    if not (folder / FILE_NAME).is_file():
        raise NotFound("store in", str(folder))
    check_target(target, folder)
    with disk_errors(target), pause_removal(folder) as pause, draft_folder(target.parent) as draft:
        database = draft / FILE_NAME
        store_file.copy_database(folder / FILE_NAME, database, report)
        reach("backup.database_copied")
        contents = _Contents.of(database, folder, now=now, version=version)
        if target.name.endswith(ARCHIVE_SUFFIX):
            store_file.check_free_space(draft, contents.facts.size_bytes)
            archive = draft / "archive"
            with _ArchiveWriter.create(archive) as writer:
                contents.write(writer, database, pause, report)
            _publish_file(archive, target)
        else:
            store_file.check_free_space(draft, contents.blob_bytes)
            content = draft / "content"
            content.mkdir(mode=FOLDER_MODE)
            contents.write(_FolderWriter(content), database, pause, report)
            publish_folder(content, target)
    return contents.facts


def check_target(target: Path, folder: Path) -> None:
    """Check where a backup is to be created.

    Raises:
        UsageError: it cannot be created there.
    """
    if target.name.endswith(_OTHER_ARCHIVES) and not target.name.endswith(ARCHIVE_SUFFIX):
        raise UsageError(f"{target}: a backup is a folder or a file whose name ends in .tar.zst")
    if os.path.lexists(target):
        raise UsageError(f"{target} exists already; choose another name, or remove it")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is not a folder; create it first")
    if target.parent.resolve().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{target} is inside the data folder {folder}, and would be lost with it;"
            " choose a place outside it, best on another disk"
        )


@dataclass(frozen=True, slots=True)
class _Contents:
    """What a backup of the copied database consists of."""

    facts: BackupFacts
    files: tuple[tuple[str, Path, int], ...]  # of blobs: name in the backup, source, size
    blob_bytes: int

    @classmethod
    def of(cls, database: Path, folder: Path, *, now: datetime, version: str) -> _Contents:
        with contextlib.closing(store_file.connect(database, read_only=True)) as connection:
            schema = store_file.check_schema(connection, database)
            counts = [
                rows(connection, f"SELECT count(*) FROM {table} WHERE {which}")[0][0]
                for table, which in (("jobs", "version > 0"), ("tasks", "true"))
            ]
            named = rows(connection, "SELECT key, size, file FROM blobs WHERE file IS NOT NULL")
            removed = _prefixes_of_removed_jobs(connection)
            _, epoch = store_file.stored_epoch(connection)
        files, missing = [], 0
        for key, size, file in named:
            path = file_path(folder, file)
            if path.is_file() and path.stat().st_size == size:
                files.append((f"blobs/{file[:2]}/{file}", path, size))
            elif not key.startswith(
                removed
            ):  # else its removal was interrupted, and continues later
                missing += 1
        blob_bytes = sum(size for *_, size in files)
        facts = BackupFacts(
            created_at=now,
            version=version,
            schema=schema,
            epoch=epoch,
            jobs=counts[0],
            tasks=counts[1],
            blobs=len(files),
            missing_blobs=missing,
            size_bytes=database.stat().st_size + blob_bytes,
        )
        return cls(facts, tuple(files), blob_bytes)

    def write(self, writer: _Writer, database: Path, pause: Pause, report: ReportBytes) -> None:
        """Write every file, and the checksums last."""
        facts = asdict(self.facts) | {"created_at": self.facts.created_at.isoformat()}
        manifest = json.dumps({"format": FORMAT, **facts}, indent=1).encode()
        checksums = [(MANIFEST, writer.add(MANIFEST, io.BytesIO(manifest), len(manifest)))]
        done = 0
        size = database.stat().st_size
        for name, path, size_bytes in ((FILE_NAME, database, size), *self.files):
            with path.open("rb") as file:
                checksums.append((name, writer.add(name, file, size_bytes)))
            done += size_bytes
            report(done, self.facts.size_bytes)
            reach("backup.file_copied")
            pause.check()
        lines = "".join(f"{checksum}  {name}\n" for name, checksum in checksums).encode()
        writer.add(CHECKSUMS, io.BytesIO(lines), len(lines))
        writer.finish()


def _prefixes_of_removed_jobs(connection: apsw.Connection) -> tuple[str, ...]:
    """The prefixes of keys of blobs that are about to be removed."""
    if not rows(connection, "SELECT 1 FROM sqlite_schema WHERE name = 'removed_jobs'"):
        return ()  # an old schema
    ids = rows(connection, "SELECT id FROM removed_jobs WHERE due_ms = 0")
    return tuple(prefix for (packed,) in ids for prefix in job_blob_prefixes(unpack_job_id(packed)))


class _Writer(Protocol):
    def add(self, name: str, source: BinaryIO, size: int) -> str:
        """Write a file. Returns its checksum."""
        ...

    def finish(self) -> None:
        """Make everything durable."""
        ...


@dataclass(frozen=True, slots=True)
class _FolderWriter:
    folder: Path

    def add(self, name: str, source: BinaryIO, size: int) -> str:
        return write_file(self.folder / name, source, size)

    def finish(self) -> None:
        for folder, _, _ in os.walk(self.folder):
            sync_folder(Path(folder))
        reach("backup.folder_synced")


@dataclass(frozen=True, slots=True)
class _ArchiveWriter:
    archive: tarfile.TarFile
    file: BinaryIO
    compressed: Any

    @classmethod
    @contextlib.contextmanager
    def create(cls, path: Path) -> Iterator[_ArchiveWriter]:
        with (
            os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
            _zstd().ZstdFile(file, "wb") as compressed,
            # Without headers of their own for long names and large files, which are not needed.
            tarfile.open(fileobj=compressed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
        ):
            yield cls(archive, file, compressed)

    def add(self, name: str, source: BinaryIO, size: int) -> str:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        reader = _HashingReader(source, name)
        self.archive.addfile(entry, reader)  # type: ignore[arg-type]
        return reader.hash.hexdigest()

    def finish(self) -> None:
        self.archive.close()
        self.compressed.close()
        self.file.flush()
        os.fsync(self.file.fileno())
        reach("backup.archive_synced")


class _HashingReader:
    """A file that is hashed as it is read."""

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source = source
        self.name = name
        self.hash = hashlib.sha256()

    def read(self, size: int) -> bytes:
        chunk = self._source.read(size)
        self.hash.update(chunk)
        return chunk


def _zstd() -> Any:
    """The library, which only archives need and other commands do not load."""
    try:
        return import_module("compression.zstd")
    except ModuleNotFoundError:  # before Python 3.14
        return import_module("backports.zstd")


@contextlib.contextmanager
def read_archive(file: BinaryIO) -> Iterator[Any]:
    """Decompress an open ``.tar.zst`` file.

    Raises:
        ReadError: it is damaged, or no such file.
    """
    zstd = _zstd()
    try:
        with zstd.ZstdFile(file, "rb") as stream:
            yield stream
    except zstd.ZstdError as error:
        raise tarfile.ReadError(str(error)) from error


def write_file(path: Path, source: Any, size: int) -> str:
    """Write a new file of exactly this size, durably. Returns its checksum."""
    path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    hashed = hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        left = size
        while left and (chunk := source.read(min(left, _CHUNK_BYTES))):
            hashed.update(chunk)
            file.write(chunk)
            left -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
        reach("backup.file_synced")
    if left:
        raise BackendUnavailable(f"{path.name} ended {left:,} bytes before its end")
    return hashed.hexdigest()


# Drafts -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """A new folder in ``parent`` that is removed at the end, or later if this process dies."""
    _remove_old_drafts(parent)
    draft, lock = _new_draft(parent)
    try:
        reach("backup.draft_created")
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(lock)


def _new_draft(parent: Path) -> tuple[Path, int]:
    """Create and lock a draft. Another process may take it for an old one before it is locked."""
    while True:
        draft = parent / f"{_DRAFT_PREFIX}{secrets.token_hex(8)}"
        draft.mkdir(mode=FOLDER_MODE)
        reach("backup.draft_named")
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if draft.exists():
                return draft, lock
            os.close(lock)


def _remove_old_drafts(parent: Path) -> None:
    """Remove drafts of processes that have died, whose locks are free."""
    for draft in parent.glob(f"{_DRAFT_PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(draft, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                reach("backup.draft_removing")
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(lock)


def publish_folder(content: Path, target: Path) -> None:
    """Give a finished folder its name; an empty folder of that name is replaced."""
    try:
        content.rename(target)
        reach("backup.published")
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EXDEV):
            message = f"{target} is a mount point, which cannot be replaced; name a folder in it"
            raise UsageError(message) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise UsageError(f"{target} exists already; choose another name") from error
        raise
    sync_folder(target.parent)


def _publish_file(draft: Path, target: Path) -> None:
    try:
        os.link(draft, target)  # never replaces a file
        reach("backup.linked")
    except FileExistsError as error:
        raise UsageError(f"{target} exists already; choose another name") from error
    except OSError:  # a file system without hard links
        draft.rename(target)
    sync_folder(target.parent)


@contextlib.contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Explains an error of the disk.

    Raises:
        BackendUnavailable: the disk is full, or cannot be read or written.
    """
    try:
        yield
    except OSError as error:
        file = error.filename or target
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(target.parent).free
            message = (
                f"disk full: {target.parent} has {free:,} bytes free; {target} was not created"
            )
        else:
            message = f"{file}: {error.strerror or error}; nothing was created"
        raise BackendUnavailable(message) from error
