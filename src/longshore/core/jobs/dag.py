"""Validation of the dependencies between the tasks of a job.

Jobs come from users: every problem is reported at once, with its path, and neither the work nor
the answer grows faster than the request. Nothing here is recursive, because a chain of ten thousand
tasks is an ordinary job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
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
    count = len(nodes) + len(existing)
    if not nodes:
        yield Problem(path="tasks", message="there must be at least one task")
    if count > limit:
        message = f"{count:,} tasks are more than the {limit:,} that a job may have"
        yield Problem(path="tasks", message=message)
    indexes: dict[str, int] = {}
    for index, node in enumerate(nodes):
        indexes.setdefault(node.key, index)
    # In a fixed order, unlike a set's, so that the same request gets the same suggestion.
    similar = _SimilarNames([*indexes, *sorted(existing)])
    for index, node in enumerate(nodes):
        yield from _task_problems(node, index, indexes, existing, similar)
    # Without edges that are problems themselves, and without edges to existing tasks, none of which
    # can depend on a new task.
    parents = [
        [indexes[key] for key in node.parents if key in indexes and key != node.key]
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


def _task_problems(
    node: Node,
    index: int,
    indexes: dict[str, int],
    existing: frozenset[str],
    similar: _SimilarNames,
) -> Iterator[Problem]:
    path = f"tasks[{index}]"
    if not TASK_KEY_PATTERN.fullmatch(node.key):
        allowed = "1 to 128 letters, digits, '-' and '_' (ASCII only)"
        message = f"{_quote(node.key)} is not a task id: use {allowed}"
        yield Problem(path=f"{path}.taskId", message=message)
    if indexes[node.key] != index or node.key in existing:
        first = "a task of this job" if node.key in existing else f"tasks[{indexes[node.key]}]"
        message = f"{_quote(node.key)} is already the id of {first}"
        yield Problem(path=f"{path}.taskId", message=message)
    seen: dict[str, int] = {}
    for position, parent in enumerate(node.parents):
        first_position = seen.setdefault(parent, position)
        if first_position != position:
            message = f"{_quote(parent)} is already named at dependsOn[{first_position}]"
        elif parent == node.key:
            message = f"{_quote(parent)} depends on itself"
        elif parent not in indexes and parent not in existing:
            hint = similar.hint(parent, exclude=node.key)
            message = f"there is no task {_quote(parent)}{hint}"
        else:
            continue
        yield Problem(path=f"{path}.dependsOn[{position}]", message=message)


def _cycles(parents: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yields cycles that share no task: a task, its parent, the parent's parent, and so on.

    Walks from each task to its parents, depth first. A task is done when all its parents are, or
    when it is part of a reported cycle, so no edge is followed twice.
    """
    untried = [iter(above) for above in parents]
    done: set[int] = set()
    positions: dict[int, int] = {}  # in the walk; those of tasks that are done do not count
    for start in range(len(parents)):
        walk = [] if start in done else [start]
        positions[start] = 0
        while walk:
            parent = next((task for task in untried[walk[-1]] if task not in done), None)
            if parent is None:
                done.add(walk.pop())
            elif parent in positions:
                cycle = walk[positions[parent] :]
                yield cycle
                done.update(cycle)
                del walk[positions[parent] :]
            else:
                positions[parent] = len(walk)
                walk.append(parent)


@dataclass(slots=True)
class _SimilarNames:
    """Suggests a similar key for a wrong one, within a budget of time."""

    names: Sequence[str]
    budget: int = _SUGGESTION_BUDGET

    def hint(self, wrong: str, *, exclude: str) -> str:
        """Returns a question to append to the message, or nothing; never suggests ``exclude``."""
        if self.budget:
            cost = len(wrong) * sum(len(name) for name in self.names)
            self.budget = max(self.budget - cost, 0)
        if not self.budget:
            return ""
        close = get_close_matches(wrong, self.names, n=2, cutoff=0.75)
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
