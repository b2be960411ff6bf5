"""The graph of a job as one document: keys, definitions and parents, and what was added when.

The dispatcher reads it only for questions about the whole job: the descendants of a failed task,
the list of all tasks at the end, dependents that were added later. Everything else is in the rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property, lru_cache
from typing import Any

from longshore.core.documents import Document, make_document
from longshore.core.jobs.numbers import NumberSet


@dataclass(frozen=True, slots=True)
class Addition:
    """Tasks that a request added to an existing job."""

    request_hash: str  # of the request id
    body_hash: str  # of the request body
    first_number: int
    count: int


@dataclass(frozen=True)
class Graph:
    """Keys, definition names and parents, by task number."""

    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    parents: tuple[tuple[int, ...], ...] = ()
    additions: tuple[Addition, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Returns the graph as lists."""
        document: dict[str, Any] = {
            "keys": self.keys,
            "names": self.names,
            "parents": self.parents,
        }
        if self.additions:
            document["additions"] = [astuple(item) for item in self.additions]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Sequence[Any]]) -> Graph:
        """Returns the graph that ``to_json`` wrote."""
        parents = tuple(tuple(numbers) for numbers in document["parents"])
        additions = tuple(Addition(*item) for item in document.get("additions", ()))
        return cls(tuple(document["keys"]), tuple(document["names"]), parents, additions)

    def find_addition(self, request_hash: str) -> Addition | None:
        """Returns the tasks that a request added, by the hash of its id."""
        return next((item for item in self.additions if item.request_hash == request_hash), None)

    def with_addition(self, addition: Addition) -> Graph:
        """Returns the graph that also records an addition."""
        return Graph(self.keys, self.names, self.parents, (*self.additions, addition))

    def truncated(self, number: int) -> Graph:
        """Returns the graph as it was when it had ``number`` tasks."""
        earlier = tuple(item for item in self.additions if item.first_number < number)
        return Graph(self.keys[:number], self.names[:number], self.parents[:number], earlier)

    @cached_property
    def dependents(self) -> Mapping[int, Sequence[int]]:
        """The tasks that depend directly on a task, by its number."""
        dependents: dict[int, list[int]] = {}
        for child, parents in enumerate(self.parents):
            for parent in parents:
                dependents.setdefault(parent, []).append(child)
        return dependents

    def descendants_of(self, numbers: Iterable[int]) -> NumberSet:
        """Returns all tasks that depend, directly or indirectly, on one of these."""
        descendants: set[int] = set()
        unvisited = list(numbers)
        while unvisited:
            for child in self.dependents.get(unvisited.pop(), ()):
                if child not in descendants:
                    descendants.add(child)
                    unvisited.append(child)
        return NumberSet(descendants)


NO_TASKS = Graph()


@lru_cache(maxsize=1024)
def graph_of_one_task(key: str, definition: str) -> Document:
    """Returns the document of the graph of a job of one task."""
    graph = Graph((key,), (definition,), ((),))
    return make_document(graph.to_json(), "")[0]


def request_hash(request_id: str) -> str:
    """Returns the hash of a request id, as the graph stores it."""
    return hashlib.sha256(request_id.encode()).hexdigest()
