"""The blob store: documents and files too large for a row."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol


class BlobStore(Protocol):
    """Bytes by key. Keys look like paths: ``jobs/job-a/input.json``; no ``..``, no leading slash.

    But they are only names: ``a`` and ``a/b`` are two blobs that know nothing of each other.

    Raises, for any method:
        UsageError: the key is not one (empty, absolute, with an empty part, ``.`` or ``..``, not
            printable, or over 1,024 bytes).
    """

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        """Store, replacing what was there; returns the size. Durable when this returns; a reader
        sees the old bytes or the new ones, never a mixture, also after a crash. If ``data`` raises,
        that error passes through and what was there stays."""
        ...

    async def get(self, key: str) -> bytes:
        """The whole blob.

        Raises:
            NotFound: there is none.
        """
        ...

    def stream(self, key: str) -> AsyncIterator[bytes]:
        """The blob in pieces. Raises NotFound at the first piece if there is none."""
        ...

    async def size(self, key: str) -> int | None:
        """Its size in bytes, or None if there is none."""
        ...

    async def delete(self, key: str) -> bool:
        """Remove; whether it was there."""
        ...

    async def list_keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Keys that begin with ``prefix``, in order, those after ``after``."""
        ...

    async def url(self, key: str, *, expires_in: timedelta) -> str | None:
        """An address at which anybody may read the blob for a while; None where there is none."""
        ...
