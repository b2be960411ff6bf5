"""A job's graph as one document: who is called what, and who stands before whom.

The dispatcher needs it only for whole-job questions (what is behind a failure, the list of all
tasks at the end); the ordinary way forward goes by the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.core.numbers import NumberSet


@dataclass(frozen=True, slots=True)
class Graph:
    """Keys, definition names and parents, by task number."""

    keys: tuple[str, ...]
    names: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Three lists; the parents of a task without any are an empty list."""
        return {"keys": self.keys, "names": self.names, "parents": self.parents}

    @classmethod
    def from_json(cls, document: Mapping[str, Sequence[Any]]) -> Graph:
        """The inverse of ``to_json``."""
        parents = tuple(tuple(numbers) for numbers in document["parents"])
        return cls(tuple(document["keys"]), tuple(document["names"]), parents)

    def behind(self, numbers: Iterable[int]) -> NumberSet:
        """Every task that directly or indirectly depends on one of these."""
        dependents: dict[int, list[int]] = {}
        for child, parents in enumerate(self.parents):
            for parent in parents:
                dependents.setdefault(parent, []).append(child)
        found: set[int] = set()
        open_ = list(numbers)
        while open_:
            for child in dependents.get(open_.pop(), ()):
                if child not in found:
                    found.add(child)
                    open_.append(child)
        return NumberSet(found)
