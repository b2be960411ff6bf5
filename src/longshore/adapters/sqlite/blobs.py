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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from longshore.adapters.shared.failpoints import reach
from longshore.adapters.sqlite.blob_files import (
    FILE_MODE,
    FOLDER_MODE,
    file_path,
    remove_file,
)
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.rows import StoreReader
from longshore.adapters.sqlite.store_file import sync_folder
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.documents import validate_key
from longshore.errors import BackendUnavailable, NotFound

INLINE_LIMIT_BYTES = 64 * 1024
_BLOB = "SELECT file, data FROM blobs WHERE key = ?"
_FILE_OF_BLOB = "SELECT file FROM blobs WHERE key = ?"
_CHUNK_BYTES = 256 * 1024

ResultT = TypeVar("ResultT")


@dataclass(eq=False)
class SqliteBlobStore:
    """See ``ports.blobs.BlobStore``."""

    _database: Database

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        validate_key(key)
        chunks = _chunks_of(data) if isinstance(data, bytes) else data
        head = b""
        async for chunk in chunks:
            head += chunk
            if len(head) > INLINE_LIMIT_BYTES:
                return await self._put_file(key, head, chunks)
        return await self._write_row(key, len(head), None, head)

    async def _put_file(self, key: str, head: bytes, rest: AsyncIterator[bytes]) -> int:
        name = secrets.token_hex(16)
        path = self._path(name)
        draft = path.with_suffix(".draft")
        try:
            with await _write_to_disk(key, _create, draft) as file:
                size = await _write_to_disk(key, file.write, head)
                async for chunk in rest:
                    size += await _write_to_disk(key, file.write, chunk)
                await _write_to_disk(key, _persist, file, draft, path)
                return await self._write_row(key, size, name, None)
        finally:
            draft.unlink(missing_ok=True)

    async def _write_row(self, key: str, size: int, file: str | None, data: bytes | None) -> int:
        def work(transaction: StoreTransaction) -> str | None:
            replaced: str | None = transaction.value(_FILE_OF_BLOB, (key,))
            transaction.execute(
                "INSERT OR REPLACE INTO blobs (key, size, file, data) VALUES (?,?,?,?)",
                (key, size, file, data),
            )
            return replaced

        self._remove(await self._database.write(work))
        return size

    async def get(self, key: str) -> bytes:
        return b"".join([chunk async for chunk in self.stream(key)])

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
            matches = self._database.point(_BLOB, (validate_key(key),))
            if not matches:
                raise NotFound("blob", key)
            file, data = matches[0]
            if file is None:
                return bytes(data)
            with contextlib.suppress(FileNotFoundError):
                return await asyncio.to_thread(self._path(file).open, "rb")
            if self._database.point_value(_FILE_OF_BLOB, (key,)) == file:
                raise BackendUnavailable(f"the file of blob {key!r} is missing: {self._path(file)}")
            # The blob was replaced between the two reads: read again.

    async def size(self, key: str) -> int | None:
        sql = "SELECT size FROM blobs WHERE key = ?"
        size: int | None = self._database.point_value(sql, (validate_key(key),))
        return size

    async def delete(self, key: str) -> bool:
        validate_key(key)

        sql = "DELETE FROM blobs WHERE key = ? RETURNING file"
        deleted = await self._database.write(lambda transaction: transaction.select(sql, (key,)))
        if deleted:
            self._remove(deleted[0][0])
        return bool(deleted)

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        return await self._database.scan_column(
            "SELECT key FROM blobs WHERE key >= ?1 AND key < ?2 AND key > ?3 ORDER BY key LIMIT ?4",
            (prefix, prefix + "\U0010ffff", after, limit),
        )

    def _path(self, file: str) -> Path:
        return file_path(self._database.folder, file)

    def _remove(self, file: str | None) -> None:
        if file is not None:
            reach("blob.replaced")
            remove_file(self._database.folder, file)


def read_blob(reader: StoreReader, folder: Path, key: str) -> bytes:
    """The bytes of a blob of the store in ``folder``.

    Raises:
        NotFound: it does not exist.
    """
    matches = reader.select(_BLOB, (key,))
    if not matches:
        raise NotFound("blob", key)
    file, data = matches[0]
    return bytes(data) if file is None else file_path(folder, file).read_bytes()


def _create(draft: Path) -> BinaryIO:
    draft.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    file = os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb")
    reach("blob.draft_opened")
    return file


def _persist(file: BinaryIO, draft: Path, path: Path) -> None:
    """Make the file durable under its own name."""
    file.flush()
    reach("blob.draft_written")
    os.fsync(file.fileno())
    reach("blob.draft_synced")
    draft.rename(path)
    reach("blob.renamed")
    for folder in list(path.parents)[:3]:
        sync_folder(folder)
    reach("blob.synced")


async def _write_to_disk(key: str, act: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """Translate errors of the disk only; an error of the caller's stream is raised unchanged."""
    try:
        if asyncio._get_running_loop() is None:
            return act(*arguments)
        return await asyncio.to_thread(act, *arguments)
    except OSError as error:
        raise BackendUnavailable(f"the blob {key!r} could not be written: {error}") from error


async def _chunks_of(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]
