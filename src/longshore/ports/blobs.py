"""The blob store: documents and files too large for a row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol


class BlobStore(Protocol):
    """Bytes by key. Keys look like paths: ``jobs/job-a/input.json``; no ``..``, no leading slash.

    They are only names: ``a`` and ``a/b`` are two independent blobs.

    Raises, for any method:
        UsageError: the key is not valid (empty, absolute, with an empty part, ``.`` or ``..``, not
            printable, or over 1,024 bytes).
    """

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        """Store a blob, replacing an existing one. Returns its size.

        Durable when this returns. A reader sees the old bytes or the new ones, never a mixture,
        also after a crash. If ``data`` raises, the error is raised and the existing blob stays.
        """
        ...

    async def get(self, key: str) -> bytes:
        """Returns the whole blob.

        Raises:
            NotFound: it does not exist.
        """
        ...

    def stream(self, key: str) -> AsyncIterator[bytes]:
        """Yields the blob in chunks. Raises NotFound at the first chunk if it does not exist."""
        ...

    async def size(self, key: str) -> int | None:
        """Returns the size in bytes, or None if the blob does not exist."""
        ...

    async def delete(self, key: str) -> bool:
        """Delete a blob. Returns True if it existed."""
        ...

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Returns the keys with a prefix that come after ``after``, in order."""
        ...
