"""Blobs in SQLite: small ones in the database, large ones as files beside it.

A large blob is written under a temporary name, synced, renamed, its folder synced, and only then
referenced by a row. So a row never refers to a missing file, and a crash leaves at worst a file
without a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

import apsw

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.store_file import Row, rows
from longshore.core.documents import validate_key
from longshore.errors import BackendUnavailable, NotFound

INLINE_LIMIT_BYTES = 64 * 1024
_CHUNK_BYTES = 256 * 1024
_FOLDER_MODE = 0o700
_FILE_MODE = 0o600


class SqliteBlobStore:
    """See ``ports.blobs.BlobStore``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._folder = database.folder / "blobs"

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        validate_key(key)
        if isinstance(data, bytes):
            if len(data) <= INLINE_LIMIT_BYTES:
                return await self._write_row(key, len(data), None, data)
            data = _chunks_of(data)
        draft = _Draft(self._folder)
        try:
            async for chunk in data:
                await _write_to_disk(key, draft.add, chunk)
            if draft.size <= INLINE_LIMIT_BYTES:
                return await self._write_row(key, draft.size, None, draft.content())
            await _write_to_disk(key, draft.persist)
            return await self._write_row(key, draft.size, draft.name, None)
        finally:
            draft.discard()

    async def _write_row(self, key: str, size: int, file: str | None, data: bytes | None) -> int:
        def work(connection: apsw.Connection) -> str | None:
            old = rows(connection, "SELECT file FROM blobs WHERE key = ?", (key,))
            connection.execute(
                "INSERT OR REPLACE INTO blobs (key, size, file, data) VALUES (?,?,?,?)",
                (key, size, file, data),
            )
            return old[0][0] if old else None

        replaced = await self._database.write(work)
        self._remove(replaced)
        return size

    async def get(self, key: str) -> bytes:
        chunks = [chunk async for chunk in self.stream(key)]
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        source = await self._open(key)
        if isinstance(source, bytes):
            yield source
            return
        with source:
            while chunk := await asyncio.to_thread(source.read, _CHUNK_BYTES):
                yield chunk

    async def _open(self, key: str) -> bytes | BinaryIO:
        while True:
            matches = self._database.point(
                "SELECT file, data FROM blobs WHERE key = ?", (validate_key(key),)
            )
            if not matches:
                raise NotFound("blob", key)
            file, data = matches[0]
            if file is None:
                return bytes(data)
            with contextlib.suppress(FileNotFoundError):
                return await asyncio.to_thread(self._path(file).open, "rb")
            if self._database.point_value("SELECT file FROM blobs WHERE key = ?", (key,)) == file:
                message = f"the file of blob {key!r} is missing in {self._folder}"
                raise BackendUnavailable(message)
            # The blob was replaced between the two reads: read again.

    async def size(self, key: str) -> int | None:
        sql = "SELECT size FROM blobs WHERE key = ?"
        size: int | None = self._database.point_value(sql, (validate_key(key),))
        return size

    async def delete(self, key: str) -> bool:
        validate_key(key)

        def work(connection: apsw.Connection) -> list[Row]:
            sql = "DELETE FROM blobs WHERE key = ? RETURNING file"
            return rows(connection, sql, (key,))

        deleted = await self._database.write(work)
        if deleted:
            self._remove(deleted[0][0])
        return bool(deleted)

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return await self._database.scan_column(
            "SELECT key FROM blobs WHERE key >= ?1 AND key < ?2 AND key > ?3 ORDER BY key LIMIT ?4",
            (prefix, prefix + "\U0010ffff", after, limit),
        )

    async def url(self, key: str, *, expires_in: timedelta) -> str | None:
        validate_key(key)
        return None

    def _path(self, file: str) -> Path:
        return self._folder / file[:2] / file

    def _remove(self, file: str | None) -> None:
        if file is not None:
            reach("blob.replaced")
            self._path(file).unlink(missing_ok=True)
            reach("blob.removed")


class _Draft:
    """A blob that is being written: in memory while it is small, then in a file without a row."""

    def __init__(self, folder: Path) -> None:
        self.size = 0
        self.name = secrets.token_hex(16)
        self._folder = folder / self.name[:2]
        self._path = self._folder / f"{self.name}.draft"
        self._buffer = bytearray()
        self._file: BinaryIO | None = None

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._file is None and self.size <= INLINE_LIMIT_BYTES:
            self._buffer += chunk
            return
        if self._file is None:
            self._folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE)
            self._file = os.fdopen(descriptor, "wb")
            reach("blob.draft_opened")
            self._file.write(self._buffer)
        self._file.write(chunk)

    def content(self) -> bytes:
        return bytes(self._buffer)

    def persist(self) -> None:
        """Make the file durable under its own name."""
        if self._file is None:
            return
        self._file.flush()
        reach("blob.draft_written")
        os.fsync(self._file.fileno())
        reach("blob.draft_synced")
        self._path.rename(self._folder / self.name)
        reach("blob.renamed")
        for folder in (self._folder, self._folder.parent, self._folder.parent.parent):
            _sync_folder(folder)
        reach("blob.synced")

    def discard(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


async def _write_to_disk(key: str, act: Callable[..., None], *arguments: bytes) -> None:
    """Translate errors of the disk only; an error of the caller's stream is raised unchanged."""
    try:
        await asyncio.to_thread(act, *arguments)
    except OSError as error:
        message = f"the blob {key!r} could not be written: {error}"
        raise BackendUnavailable(message) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


async def _chunks_of(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]
