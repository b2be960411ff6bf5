"""Documents: short ones stand in their row, long ones in the blob store; callers need not care."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from longshore.core.changes import Change
from longshore.core.events.codec import properties_of
from longshore.core.events.event import Event
from longshore.core.overflow import join, payload_key, split
from longshore.core.planning import document_of
from longshore.core.rows import JobRow
from longshore.core.values import Document
from longshore.errors import UsageError
from longshore.ports.blobs import BlobStore

# Where an event may have a reference: nowhere else is an object one, whatever it looks like.
_DOCUMENTS = frozenset({"output", "input", "dependsOn"})
_LISTS = frozenset({"tasks", "newTasks"})


class Documents:
    """Writes documents before the rows that refer to them, and reads them back."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    async def keep(self, value: Any, key: str, *, limit_bytes: int | None = None) -> Document:
        """Store a value; durable when this returns unless it is inline.

        Raises:
            UsageError: it is larger than ``limit_bytes``.
            ValueError: JSON cannot carry it.
        """
        document, data = document_of(value, key)
        if limit_bytes is not None and document.size > limit_bytes:
            message = f"{document.size} bytes as JSON, and at most {limit_bytes} are allowed"
            raise UsageError(message)
        if data is not None:
            await self._blobs.put(key, data)
        return document

    async def load(self, document: Document | None) -> Any:
        """The value; None for no document."""
        if document is None:
            return None
        if document.key is None:
            return json.loads(document.text or "null")
        return json.loads(await self._blobs.get(document.key))

    async def load_key(self, key: str) -> Any:
        """The value that was stored under a key."""
        return json.loads(await self._blobs.get(key))

    async def keep_key(self, key: str, value: Any) -> None:
        """Store a value under a key whatever its size."""
        await self._blobs.put(key, json.dumps(value, separators=(",", ":")).encode())

    async def spill(self, change: Change[JobRow]) -> Change[JobRow]:
        """The change with the large fields of its events moved to the blob store."""
        change_id = change.row.change_id
        events = tuple([await self._spill_event(event, change_id) for event in change.events])
        return replace(change, events=events)

    async def _spill_event(self, event: Event, change_id: str) -> Event:
        properties = properties_of(event)
        data = json.dumps(properties, separators=(",", ":"), ensure_ascii=False).encode()
        # Two who tell the same entity's next event at once give it one id; only one of them will
        # have told it, and the other must not have written over its payload.
        place = f"{event.entity_id}/{change_id}"
        _, overflow = split(properties, entity_id=place, event_id=event.id, size=len(data))
        if overflow is None:
            return event
        await self.keep_key(overflow.key, overflow.fields)
        return replace(event, overflow=overflow.key)

    async def whole(self, properties: dict[str, Any]) -> dict[str, Any]:
        """Properties of an event with everything that was moved out put back."""
        if (key := payload_key(properties)) is not None:
            properties = join(properties, await self.load_key(key))
        whole = {
            name: await self._put_back(value) if name in _DOCUMENTS else value
            for name, value in properties.items()
        }
        for name in _LISTS.intersection(whole):
            # Of some events these are names alone.
            whole[name] = [
                await self.whole(item) if isinstance(item, dict) else item for item in whole[name]
            ]
        return whole

    async def _put_back(self, value: Any) -> Any:
        match value:
            case {"_ref": {"key": str(key)}} if len(value) == 1:
                return await self.load_key(key)
            case {"_literal": literal} if len(value) == 1:
                # A user's own value that only looks like a reference.
                return literal
        return value
