"""Definitions: where the named, versioned recipes are kept."""

from __future__ import annotations

from typing import Protocol

from longshore.core.definitions.definition import Definition


class Definitions(Protocol):
    """Versions of definitions. A version that exists is never changed."""

    async def put(self, tenant: str, definition: Definition) -> Definition:
        """Store as the next version and return it with its number, counted from 1.

        If the newest version has the same content, it is returned and nothing is stored. Two
        writers at once get two versions or share one; none is lost.
        """
        ...

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        """A version, or the newest. A deleted definition is found only by its version."""
        ...

    async def list(self, tenant: str) -> list[Definition]:
        """The newest version of each that is not deleted, by name."""
        ...

    async def delete(self, tenant: str, name: str) -> bool:
        """Hide it from ``list`` and from ``get`` without a version; whether it was there.

        Running jobs keep the version they were started with. A later ``put`` goes on counting.
        """
        ...
