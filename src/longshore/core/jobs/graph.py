"""A job's graph as one document: who is called what, who stands before whom, what was added when.

The dispatcher needs it only for whole-job questions (what is behind a failure, the list of all
tasks at the end, who was put behind a task later); the ordinary way forward goes by the rows alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longshore.core.jobs.numbers import NumberSet


@dataclass(frozen=True, slots=True)
class Addition:
    """Tasks that were added to a job that was there: by which request, and which they are."""

    request_hash: str  # a hash of its id
    body_hash: str  # a hash of what was sent
    first_number: int
    count: int


@dataclass(frozen=True, slots=True)
class Graph:
    """Keys, definition names and parents, by task number."""

    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    parents: tuple[tuple[int, ...], ...] = ()
    additions: tuple[Addition, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Lists; the parents of a task without any are an empty list."""
        document: dict[str, Any] = {
            "keys": self.keys,
            "names": self.names,
            "parents": self.parents,
        }
        if self.additions:
            document["additions"] = [
                (one.request_hash, one.body_hash, one.first_number, one.count)
                for one in self.additions
            ]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Sequence[Any]]) -> Graph:
        """The inverse of ``to_json``."""
        parents = tuple(tuple(numbers) for numbers in document["parents"])
        additions = tuple(Addition(*one) for one in document.get("additions", ()))
        return cls(tuple(document["keys"]), tuple(document["names"]), parents, additions)

    def find_addition(self, request_hash: str) -> Addition | None:
        """What a request has added, by the hash of its id."""
        return next((one for one in self.additions if one.request_hash == request_hash), None)

    def truncated(self, number: int) -> Graph:
        """As it was when it had so many tasks."""
        earlier = tuple(one for one in self.additions if one.first_number < number)
        return Graph(self.keys[:number], self.names[:number], self.parents[:number], earlier)

    def descendants_of(self, numbers: Iterable[int]) -> NumberSet:
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


def request_hash(request_id: str) -> str:
    """What is kept of the id of a request that adds tasks."""
    return hashlib.sha256(request_id.encode()).hexdigest()
