"""Definitions in memory."""

from __future__ import annotations

# The port has a method of this name, and inside its class the name means the method.
from builtins import list as List  # noqa: N812
from copy import deepcopy
from dataclasses import replace

from longshore.core.definitions.definition import Definition


class MemoryDefinitions:
    """See ``ports.configuration.Definitions``.

    Options are copied on the way in and out: a version that exists is never changed, also not by
    somebody who still has the dict in hand.
    """

    def __init__(self) -> None:
        self._versions: dict[tuple[str, str], List[Definition]] = {}
        self._deleted: dict[tuple[str, str], None] = {}

    async def put(self, tenant: str, definition: Definition) -> Definition:
        name = (tenant, definition.name)
        versions = self._versions.setdefault(name, [])
        newest = versions[-1] if versions and name not in self._deleted else None
        if newest is None or newest != replace(definition, version=newest.version):
            newest = replace(_copy(definition), version=len(versions) + 1)
            versions.append(newest)
            self._deleted.pop(name, None)
        return _copy(newest)

    async def get(self, tenant: str, name: str, *, version: int | None = None) -> Definition | None:
        versions = self._versions.get((tenant, name), [])
        if version is None:
            if not versions or (tenant, name) in self._deleted:
                return None
            return _copy(versions[-1])
        return _copy(versions[version - 1]) if 0 < version <= len(versions) else None

    async def list(self, tenant: str) -> List[Definition]:
        newest = [
            versions[-1]
            for name, versions in self._versions.items()
            if name[0] == tenant and name not in self._deleted
        ]
        return [_copy(one) for one in sorted(newest, key=lambda one: one.name)]

    async def delete(self, tenant: str, name: str) -> bool:
        there = (tenant, name) in self._versions and (tenant, name) not in self._deleted
        if there:
            self._deleted[tenant, name] = None
        return there


def _copy(definition: Definition) -> Definition:
    # The options are all of it that can be changed.
    return replace(definition, options=deepcopy(definition.options))
