"""The blob store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

from longshore.core.documents import validate_key
from longshore.errors import NotFound

_CHUNK_BYTES = 1024 * 1024


class MemoryBlobStore:
    """See ``ports.blobs.BlobStore``."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        validate_key(key)
        # Whole before it is stored: a stream that breaks off must leave the old bytes alone.
        whole = data if isinstance(data, bytes) else b"".join([piece async for piece in data])
        self._blobs[key] = whole
        return len(whole)

    async def get(self, key: str) -> bytes:
        if validate_key(key) not in self._blobs:
            raise NotFound("blob", key)
        return self._blobs[key]

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        data = await self.get(key)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]

    async def size(self, key: str) -> int | None:
        data = self._blobs.get(validate_key(key))
        return None if data is None else len(data)

    async def delete(self, key: str) -> bool:
        return self._blobs.pop(validate_key(key), None) is not None

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        found = [key for key in self._blobs if key.startswith(prefix) and key > after]
        return sorted(found)[:limit]

    async def url(self, key: str, *, expires_in: timedelta) -> str | None:
        validate_key(key)
        return None
