"""Stores documents: small ones in their row, large ones in the blob store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from longshore.core.documents import (
    INLINE_LIMIT_BYTES,
    Document,
    EncodedJson,
    encode_json,
    text_document,
)
from longshore.core.events.codec import join_overflow, overflow_key, overflow_of, properties_of
from longshore.core.jobs.graph import Graph
from longshore.core.tasks.changes import Change
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.core.tasks.states import TaskState
from longshore.core.text.durations import format_duration
from longshore.errors import UsageError
from longshore.ports.blobs import BlobStore

# The only fields of events that may be references; elsewhere an object is a user's value.
_DOCUMENTS = frozenset({"output", "input", "dependsOn"})
_LISTS = frozenset({"tasks", "newTasks"})
LONG_BYTES = 256 * 1024
"""A longer document is parsed and written in a thread."""


@dataclass(frozen=True, slots=True)
class DocumentStore:
    """Writes documents before the rows that refer to them, and reads them back."""

    blobs: BlobStore
    inline_bytes: int = INLINE_LIMIT_BYTES

    async def store(self, value: Any, key: str, *, limit_bytes: int | None = None) -> Document:
        """Store a value; it is durable when this returns unless it is inline.

        Raises:
            UsageError: it is larger than ``limit_bytes``.
            ValueError: it is not JSON.
        """
        if isinstance(value, EncodedJson):
            _check_size(len(value.data), limit_bytes)
            if value.check is not None:
                await asyncio.to_thread(value.check, value.data)
            size = await self.blobs.put(key, _pieces_of(value))
            return Document(key=key, size=size)
        return await self.store_text(encode_json(value), key, limit_bytes=limit_bytes)

    async def store_text(self, text: str, key: str, *, limit_bytes: int | None = None) -> Document:
        """Store JSON text; see ``store``."""
        document, data = text_document(text, key, inline_bytes=self.inline_bytes)
        _check_size(document.size, limit_bytes)
        if data is not None:
            await self.blobs.put(key, data)
        return document

    async def load(self, document: Document | None) -> Any:
        """Returns the value of a document; None for no document."""
        if document is None:
            return None
        if document.key is None:
            return json.loads(document.text or "null")
        return await self.load_key(document.key)

    async def load_graph(self, job: JobRow) -> Graph:
        """Returns the dependencies of a job's tasks."""
        return Graph.from_json(await self.load(job.graph))

    async def load_key(self, key: str) -> Any:
        """Returns the value that was stored under a key."""
        data = await self.blobs.get(key)
        if len(data) <= LONG_BYTES or asyncio._get_running_loop() is None:
            return json.loads(data)
        return await asyncio.to_thread(json.loads, data)

    async def store_key(self, key: str, value: Any) -> None:
        """Store a value of any size under a key; fields of an object may be ``EncodedJson``."""
        if isinstance(value, dict) and any(isinstance(v, EncodedJson) for v in value.values()):
            await self.blobs.put(key, _pieces_of_object(value))
        else:
            await self.blobs.put(key, json.dumps(value, separators=(",", ":")).encode())

    async def spill(self, change: Change[JobRow]) -> Change[JobRow]:
        """Returns the change with the large fields of its events moved to the blob store."""
        spilled = []
        for event in change.events:
            if (overflow := overflow_of(properties_of(event))) is not None:
                # Two processes that emit the same entity's next event use the same id. Only one
                # commits, and the other must not overwrite its payload.
                folder = f"{event.entity_id}/{change.row.change_id}"
                key = f"events/{folder}/{event.id}-payload.json"
                await self.store_key(key, overflow)
                event = replace(event, overflow=key)
            spilled.append(event)
        return replace(change, events=tuple(spilled))

    async def restore(self, properties: dict[str, Any]) -> dict[str, Any]:
        """Returns an event's properties with everything that was moved out."""
        if (key := overflow_key(properties)) is not None:
            properties = join_overflow(properties, await self.load_key(key))
        whole = {
            name: await self._resolve_reference(value) if name in _DOCUMENTS else value
            for name, value in properties.items()
        }
        for name in _LISTS.intersection(whole):
            # In some events these are only names.
            whole[name] = [
                await self.restore(item) if isinstance(item, dict) else item for item in whole[name]
            ]
        return whole

    async def _resolve_reference(self, value: Any) -> Any:
        match value:
            case {"_ref": {"key": str(key)}} if len(value) == 1:
                return await self.load_key(key)
            case {"_literal": literal} if len(value) == 1:
                # A user's own value that only looks like a reference.
                return literal
        return value


def derived_files(row: TaskRow) -> dict[str, Document]:
    """The files that the latest attempt of a task has without storing them, by name.

    They are made from the row when they are read; a file of the same name that was stored has
    precedence.
    """
    over = row.state.terminal or row.state is TaskState.IN_REVIEW
    if not over or row.attempt == 0:
        return {}
    folder = f"attempt-{row.attempt}"
    summary = f"task: {row.state.value}"
    if row.ran_for is not None:
        summary += f" after {format_duration(row.ran_for)}"
    if row.exit_code:
        summary += f", exit code {row.exit_code}"
    if row.failure is not None and row.state is TaskState.FAILED:
        summary += f": {row.failure.category.value}: {row.failure.message}"
    files = {f"{folder}/logs/summary.log": _text(f"{summary}\n")}
    if row.result is not None:
        files[f"{folder}/artifacts/task-result.json"] = row.result
    return files


def _text(text: str) -> Document:
    return Document(text=text, size=len(text.encode(errors="replace")))


def _check_size(size: int, limit: int | None) -> None:
    if limit is not None and size > limit:
        raise UsageError(f"{size} bytes as JSON, and at most {limit} are allowed")


async def _pieces_of(text: EncodedJson) -> AsyncIterator[bytes]:
    for piece in text.pieces():
        yield piece


async def _pieces_of_object(fields: dict[str, Any]) -> AsyncIterator[bytes]:
    before = b"{"
    for name, value in fields.items():
        yield before + json.dumps(name).encode() + b":"
        before = b","
        if isinstance(value, EncodedJson):
            for piece in value.pieces():
                yield piece
        else:
            yield json.dumps(value, separators=(",", ":")).encode()
    yield b"}"
