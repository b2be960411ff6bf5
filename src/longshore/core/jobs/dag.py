"""The shape of a job: which task waits for which, and whether that can ever come to an end.

A job arrives as names; inside, a task is its number, so that one bit serves it in a row. Numbers
follow the given order and never change, also when tasks are added to a running job.

What is submitted comes from strangers: every problem is reported at once, with its place, and
neither the work nor the answer grows faster than the request. Nothing here recurses, because a
chain of ten thousand tasks is an ordinary job.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from longshore.errors import InvalidJob

TASK_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""What a task may be called inside its job; the whole name has to match."""

PROBLEM_LIMIT = 100

_SHOWN_CHARACTERS = 128  # as long as a valid name, so that only a wrong one is cut
_SHOWN_TASKS_OF_CYCLE = 20
# Looking for a similar name costs up to the product of the two lengths, in all about a tenth of a
# second here; in a huge job the first wrong name gets a suggestion, in a small one each of them.
_SUGGESTION_BUDGET = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A task as submitted: what it is called, and the tasks it waits for."""

    key: str
    parents: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong with a submitted job, and where, like ``tasks[3].dependsOn[1]``."""

    path: str
    message: str


class Dag:
    """Tasks by number, and the edges between them both ways."""

    __slots__ = ("_dependents", "_numbers", "_parents", "roots")

    roots: tuple[int, ...]

    def __init__(self, nodes: Sequence[Node], *, limit: int | None = None) -> None:
        """Build from tasks that are checked here.

        Raises:
            InvalidJob: ``problems_of`` found something; ``limit`` is optional because a job that
                was accepted once stays readable after the limit was lowered.
        """
        _raise_problems(problems_of(nodes, limit=limit))
        self._link((), (), nodes)

    def extended(self, more: Sequence[Node], *, limit: int | None = None) -> Dag:
        """This job with more tasks, which may depend on old ones; old numbers do not change.

        Raises:
            InvalidJob: the added tasks have problems; paths count from the first added task.
        """
        _raise_problems(problems_of(more, limit=limit, existing=self._numbers.keys()))
        extended = object.__new__(Dag)
        extended._link(self.keys, self._parents, more)
        return extended

    def _link(
        self,
        keys: tuple[str, ...],
        parents: tuple[tuple[int, ...], ...],
        nodes: Sequence[Node],
    ) -> None:
        all_keys = (*keys, *(node.key for node in nodes))
        self._numbers = {key: number for number, key in enumerate(all_keys)}
        linked = (tuple(self._numbers[key] for key in node.parents) for node in nodes)
        self._parents = (*parents, *linked)
        self._dependents = _dependents(self._parents)
        self.roots = tuple(number for number, above in enumerate(self._parents) if not above)

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def keys(self) -> tuple[str, ...]:
        """What the tasks are called, by number."""
        return tuple(self._numbers)

    def number_of(self, key: str) -> int:
        """The number of the task with this name, which must be one of the job's."""
        return self._numbers[key]

    def parents_of(self, number: int) -> tuple[int, ...]:
        """The tasks that this one waits for, in the order in which they were given."""
        return self._parents[number]

    def dependents_of(self, number: int) -> tuple[int, ...]:
        """The tasks that wait for this one, lowest number first."""
        return self._dependents[number]

    def topological(self) -> list[int]:
        """All tasks, each after its parents; the same order every time."""
        return _Countdown(self._parents, self._dependents).order

    def descendants_of(self, numbers: Iterable[int]) -> set[int]:
        """Everything that waits for one of these, directly or not."""
        found: set[int] = set()
        unseen = list(numbers)
        while unseen:
            fresh = [task for task in self._dependents[unseen.pop()] if task not in found]
            found.update(fresh)
            unseen.extend(fresh)
        return found

    def ready(self, finished: Container[int]) -> list[int]:
        """The unfinished tasks whose parents have all finished, lowest number first."""
        return [
            number
            for number, parents in enumerate(self._parents)
            if number not in finished and all(parent in finished for parent in parents)
        ]


def problems_of(
    nodes: Sequence[Node], *, limit: int | None, existing: Collection[str] = ()
) -> list[Problem]:
    """Everything that is wrong with these tasks, the first ``PROBLEM_LIMIT`` in full.

    Args:
        limit: How many tasks the whole job may have.
        existing: The tasks that the job has already, when these are to be added to it.
    """
    found = _all_problems(nodes, limit, frozenset(existing))
    shown = list(islice(found, PROBLEM_LIMIT))
    more = sum(1 for _ in found)
    if more:
        shown.append(Problem(path="tasks", message=f"{more:,} more problems are not shown"))
    return shown


def _raise_problems(problems: Sequence[Problem]) -> None:
    if problems:
        raise InvalidJob(problems)


def _all_problems(
    nodes: Sequence[Node], limit: int | None, existing: frozenset[str]
) -> Iterator[Problem]:
    places: dict[str, int] = {}
    for place, node in enumerate(nodes):
        places.setdefault(node.key, place)
    yield from _count_problems(len(nodes), len(existing), limit)
    known = places.keys() | existing
    # In the given order, not in a set's, so that the same request gets the same suggestion.
    similar = _SimilarNames([*places, *sorted(existing)])
    for place, node in enumerate(nodes):
        yield from _key_problems(node.key, place, places, existing)
        yield from _parent_problems(node, place, known, similar)
    yield from _cycle_problems(nodes, places)


def _count_problems(count: int, existing: int, limit: int | None) -> Iterator[Problem]:
    if count == 0:
        yield Problem(path="tasks", message="there must be at least one task")
    if limit is not None and count + existing > limit:
        message = f"{count + existing:,} tasks are more than the {limit:,} that a job may have"
        yield Problem(path="tasks", message=message)


def _key_problems(
    key: str, index: int, indexes: dict[str, int], existing: frozenset[str]
) -> Iterator[Problem]:
    path = f"tasks[{index}].taskId"
    if not TASK_KEY_PATTERN.fullmatch(key):
        allowed = "1 to 128 letters, digits, '-' and '_' (ASCII only)"
        yield Problem(path=path, message=f"{_quote(key)} is not a task id: use {allowed}")
    if indexes[key] != index:
        first = f"tasks[{indexes[key]}]"
        yield Problem(path=path, message=f"{_quote(key)} is already the id of {first}")
    if key in existing:
        yield Problem(path=path, message=f"{_quote(key)} is already the id of a task of this job")


def _parent_problems(
    node: Node, index: int, valid_keys: Container[str], similar: _SimilarNames
) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for position, parent in enumerate(node.parents):
        first = seen.setdefault(parent, position)
        if first != position:
            message = f"{_quote(parent)} is already named at dependsOn[{first}]"
        elif parent == node.key:
            message = f"{_quote(parent)} depends on itself"
        elif parent not in valid_keys:
            message = f"there is no task {_quote(parent)}{similar.hint(parent, exclude=node.key)}"
        else:
            continue
        yield Problem(path=f"tasks[{index}].dependsOn[{position}]", message=message)


def _cycle_problems(nodes: Sequence[Node], indexes: dict[str, int]) -> Iterator[Problem]:
    # Edges that are a problem of their own are left out, and so are those to tasks that the job
    # has already: none of these can depend on a new one.
    parents = [
        tuple({indexes[key]: None for key in node.parents if key in indexes and key != node.key})
        for node in nodes
    ]
    for cycle in _cycles(parents):
        start = cycle.index(min(cycle))
        keys = [nodes[place].key for place in cycle[start:] + cycle[:start]]
        position = nodes[cycle[start]].parents.index(keys[1])
        yield Problem(
            path=f"tasks[{cycle[start]}].dependsOn[{position}]",
            message=f"each of these tasks depends on the next: {_format_cycle(keys)}",
        )


def _cycles(parents: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Cycles that share no task, each as a task, its parent, the parent of that and so on.

    Walks from a stuck task to a stuck parent until one comes again. A cycle that was found is taken
    away as if it were done, which frees what only waited behind it; what is left of the walk is
    stuck for another reason, and the walk goes on from there. So no task is walked twice.
    """
    countdown = _Countdown(parents, _dependents(parents))
    untried = [iter(above) for above in parents]
    for start in range(len(parents)):
        walk, places = [start], {start: 0}
        while walk:
            tip = walk[-1]
            if countdown.is_done(tip):
                del places[walk.pop()]
                continue
            parent = next(task for task in untried[tip] if not countdown.is_done(task))
            if parent in places:
                cycle = walk[places[parent] :]
                yield cycle
                countdown.finish(cycle)
            else:
                places[parent] = len(walk)
                walk.append(parent)


class _Countdown:
    """Kahn's algorithm: a task is done once all its parents are; what remains is stuck."""

    def __init__(
        self, parents: Sequence[Sequence[int]], dependents: Sequence[Sequence[int]]
    ) -> None:
        self._dependents = dependents
        self._awaited = [len(above) for above in parents]
        self._done = bytearray(len(parents))
        self.order: list[int] = []
        self.finish([number for number, count in enumerate(self._awaited) if count == 0])

    def is_done(self, number: int) -> bool:
        return bool(self._done[number])

    def finish(self, numbers: Iterable[int]) -> None:
        """Count these as done, whatever they wait for, and then all that this sets free."""
        queue = deque(numbers)
        for number in queue:
            self._done[number] = True
        while queue:
            number = queue.popleft()
            self.order.append(number)
            for dependent in self._dependents[number]:
                self._awaited[dependent] -= 1
                if self._awaited[dependent] == 0 and not self._done[dependent]:
                    self._done[dependent] = True
                    queue.append(dependent)


def _dependents(parents: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    below: list[list[int]] = [[] for _ in parents]
    for number, above in enumerate(parents):
        for parent in above:
            below[parent].append(number)
    return tuple(tuple(numbers) for numbers in below)


class _SimilarNames:
    """Finds what a wrong name was meant to be, as long as that is cheap."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._characters = sum(len(name) for name in names)
        self._budget = _SUGGESTION_BUDGET

    def hint(self, wrong: str, *, exclude: str) -> str:
        """A question to append to the message, or nothing; ``not_`` is never meant."""
        cost = len(wrong) * self._characters
        if cost > self._budget:
            return ""
        self._budget -= cost
        close = get_close_matches(wrong, self._names, n=2, cutoff=0.75)
        meant = [name for name in close if name != exclude]
        return f"; did you mean {_quote(meant[0])}?" if meant else ""


def _quote(key: str) -> str:
    """The name in quotes, cut and escaped: a wrong one can be anything."""
    return repr(key) if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]!r}…"


def _format_cycle(keys: list[str]) -> str:
    """The cycle back to where it began, its middle left out when it is very long."""
    names = [key if TASK_KEY_PATTERN.fullmatch(key) else _quote(key) for key in keys]
    if len(names) > _SHOWN_TASKS_OF_CYCLE:
        half = _SHOWN_TASKS_OF_CYCLE // 2
        left_out = f"… {len(names) - 2 * half:,} more …"
        names = [*names[:half], left_out, *names[-half:]]
    return " -> ".join([*names, names[0]])
