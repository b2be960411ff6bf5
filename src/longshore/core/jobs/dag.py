"""Validation of the dependencies between the tasks of a job.

Jobs come from users: every problem is reported at once, with its path, and neither the work nor
the answer grows faster than the request. Nothing here is recursive, because a chain of ten thousand
tasks is an ordinary job.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from longshore.errors import Problem

TASK_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""The pattern of a task's key, which is its name inside its job."""

PROBLEM_LIMIT = 100

_SHOWN_CHARACTERS = 128  # the length of a valid key, so that only invalid keys are truncated
_SHOWN_TASKS_OF_CYCLE = 20
# A search for a similar key costs up to the product of the two lengths. This budget takes a tenth
# of a second: a suggestion for each wrong key of a small job, and for the first of a huge one.
_SUGGESTION_BUDGET = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A task with the keys of the tasks that it depends on."""

    key: str
    parents: tuple[str, ...] = ()


def problems_of(
    nodes: Sequence[Node], *, limit: int, existing: Collection[str] = ()
) -> list[Problem]:
    """Returns the problems of these tasks: the first ``PROBLEM_LIMIT``, and how many more.

    Args:
        limit: The maximum number of tasks of the whole job.
        existing: The keys of the tasks that the job already has.
    """
    problems = _all_problems(nodes, limit, frozenset(existing))
    shown = list(islice(problems, PROBLEM_LIMIT))
    more = sum(1 for _ in problems)
    if more:
        shown.append(Problem(path="tasks", message=f"{more:,} more problems are not shown"))
    return shown


def _all_problems(nodes: Sequence[Node], limit: int, existing: frozenset[str]) -> Iterator[Problem]:
    indexes: dict[str, int] = {}
    for index, node in enumerate(nodes):
        indexes.setdefault(node.key, index)
    yield from _count_problems(len(nodes), len(existing), limit)
    valid_keys = indexes.keys() | existing
    # In a fixed order, unlike a set's, so that the same request gets the same suggestion.
    similar = _SimilarNames([*indexes, *sorted(existing)])
    for index, node in enumerate(nodes):
        yield from _key_problems(node.key, index, indexes, existing)
        yield from _parent_problems(node, index, valid_keys, similar)
    yield from _cycle_problems(nodes, indexes)


def _count_problems(count: int, existing: int, limit: int) -> Iterator[Problem]:
    if count == 0:
        yield Problem(path="tasks", message="there must be at least one task")
    if count + existing > limit:
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
    # Without edges that are problems themselves, and without edges to existing tasks, none of which
    # can depend on a new task.
    parents = [
        tuple({indexes[key]: None for key in node.parents if key in indexes and key != node.key})
        for node in nodes
    ]
    for cycle in _cycles(parents):
        start = cycle.index(min(cycle))
        keys = [nodes[index].key for index in cycle[start:] + cycle[:start]]
        position = nodes[cycle[start]].parents.index(keys[1])
        yield Problem(
            path=f"tasks[{cycle[start]}].dependsOn[{position}]",
            message=f"each of these tasks depends on the next: {_format_cycle(keys)}",
        )


def _cycles(parents: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yields cycles that share no task: a task, its parent, the parent's parent, and so on.

    Walks from a stuck task to a stuck parent until a task repeats. The cycle is then removed as if
    it were done, which frees the tasks that only depend on it. The rest of the walk is stuck for
    another reason, and the walk continues there, so no task is visited twice.
    """
    countdown = _Countdown(parents, _dependents(parents))
    untried = [iter(above) for above in parents]
    for start in range(len(parents)):
        walk, positions = [start], {start: 0}
        while walk:
            tip = walk[-1]
            if countdown.is_done(tip):
                del positions[walk.pop()]
                continue
            parent = next(task for task in untried[tip] if not countdown.is_done(task))
            if parent in positions:
                cycle = walk[positions[parent] :]
                yield cycle
                countdown.finish(cycle)
            else:
                positions[parent] = len(walk)
                walk.append(parent)


class _Countdown:
    """Kahn's algorithm: a task is done once all its parents are; what remains is stuck."""

    def __init__(
        self, parents: Sequence[Sequence[int]], dependents: Sequence[Sequence[int]]
    ) -> None:
        self._dependents = dependents
        self._awaited = [len(above) for above in parents]
        self._done = bytearray(len(parents))
        self.finish([number for number, count in enumerate(self._awaited) if count == 0])

    def is_done(self, number: int) -> bool:
        return bool(self._done[number])

    def finish(self, numbers: Iterable[int]) -> None:
        """Count these tasks as done, and then all tasks whose parents are done."""
        queue = deque(numbers)
        for number in queue:
            self._done[number] = True
        while queue:
            number = queue.popleft()
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
    """Suggests a similar key for a wrong one, within a budget of time."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._characters = sum(len(name) for name in names)
        self._budget = _SUGGESTION_BUDGET

    def hint(self, wrong: str, *, exclude: str) -> str:
        """Returns a question to append to the message, or nothing; never suggests ``exclude``."""
        cost = len(wrong) * self._characters
        if cost > self._budget:
            return ""
        self._budget -= cost
        close = get_close_matches(wrong, self._names, n=2, cutoff=0.75)
        names = [name for name in close if name != exclude]
        return f"; did you mean {_quote(names[0])}?" if names else ""


def _quote(key: str) -> str:
    """Returns the key in quotes, truncated and escaped: an invalid key can be any text."""
    return repr(key) if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]!r}…"


def _format_cycle(keys: list[str]) -> str:
    """Returns the cycle back to its start, without its middle if it is very long."""
    names = [key if TASK_KEY_PATTERN.fullmatch(key) else _quote(key) for key in keys]
    if len(names) > _SHOWN_TASKS_OF_CYCLE:
        half = _SHOWN_TASKS_OF_CYCLE // 2
        omitted = f"… {len(names) - 2 * half:,} more …"
        names = [*names[:half], omitted, *names[-half:]]
    return " -> ".join([*names, names[0]])
