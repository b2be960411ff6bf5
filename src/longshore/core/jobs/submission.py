"""Job documents: what a client submits, read with every problem reported at once.

A document is the value of a JSON or YAML text: ``{"tasks": [{"taskId", "name", "dependsOn"?,
"input"?, "queue"?, "priority"?, "delay"?, "runAt"?, "maxAttempts"?}], "name"?, "budget"?}``.
Whether the named definitions exist is checked by the services that store them.

Jobs come from users: neither the work nor the answer grows faster than the request. Nothing here is
recursive, because a chain of ten thousand tasks is an ordinary job.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any

from longshore.core.budgets import NO_BUDGET, Budget, read_budget
from longshore.core.definitions.definition import (
    NO_DEFINITION,
    Definition,
    merge_input,
    override_problem,
)
from longshore.core.document_reader import (
    DocumentReader,
    check_json,
    choice_reader,
    expected,
    integer_reader,
    read_name,
    short_name,
)
from longshore.core.documents import json_encoder
from longshore.core.ids import is_name
from longshore.core.records import value
from longshore.core.tasks.states import Priority
from longshore.errors import InvalidJob, Problem

TASK_KEY_PATTERN = re.compile(r"[A-Za-z0-9_-]{1,128}")
"""The pattern of a task's key, which is its name inside its job."""

PROBLEM_LIMIT = 100

_SHOWN_CHARACTERS = 128  # the length of a valid key, so that only invalid keys are truncated
_SHOWN_TASKS_OF_CYCLE = 20
# A search for a similar key costs up to the product of the two lengths. This budget takes a tenth
# of a second: a suggestion for each wrong key of a small job, and for the first of a huge one.
_SUGGESTION_BUDGET = 2_000_000

_JOB_FIELDS = ("tasks", "name", "app", "budget")
MAX_DELAY = timedelta(days=366)
MAX_ATTEMPTS = 100


@value
class TaskRequest:
    """A requested task; None: the definition decides."""

    key: str
    definition: str = ""
    parents: tuple[str, ...] = ()
    input: Any = None
    queue: str | None = None
    priority: Priority | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None


@value
class JobRequest:
    """A requested job."""

    tasks: tuple[TaskRequest, ...]
    name: str | None = None
    app: str | None = None
    budget: Budget = NO_BUDGET


def read_job(document: Any, *, limit: int, existing: Collection[str] | None = None) -> JobRequest:
    """Returns the job that a document describes, or the tasks that it adds to a job.

    Args:
        limit: The maximum number of tasks of the whole job.
        existing: The keys of the tasks that the job has; None: it is a new job. A document that
            adds tasks is ``{"tasks": […]}``.

    Raises:
        InvalidJob: with every problem and its path.
    """
    reader = DocumentReader()
    if not isinstance(document, dict):
        raise InvalidJob([Problem(path="", message="expected an object with a list 'tasks'")])
    reader.reject_unknown(document, _JOB_FIELDS if existing is None else ("tasks",), "")
    name = reader.field(document, "name", "", _read_text)
    app = reader.field(document, "app", "", read_name)
    budget = reader.field(document, "budget", "", read_budget, NO_BUDGET)
    requests: list[TaskRequest] = []
    if isinstance(tasks := document.get("tasks"), list):
        requests += [_read_task(reader, task, f"tasks[{i}]") for i, task in enumerate(tasks)]
        reader.problems += problems_of(requests, limit=limit, existing=existing or ())
    else:
        reader.add("tasks", "expected a list of tasks")
    if reader.problems:
        raise InvalidJob(reader.problems)
    return JobRequest(tasks=tuple(requests), name=name, app=app, budget=budget)


# A time is the only value that ``read_job`` accepts and JSON does not have.
_encode_canonical = json_encoder(canonical=True, default=datetime.isoformat)


def canonical_text(document: Any) -> str:
    """Returns a valid document as JSON with sorted fields and without spaces."""
    return _encode_canonical(document)


def canonical_hash(document: Any) -> str:
    """Returns a hash that is equal for documents with the same content."""
    import hashlib  # loaded here, as OpenSSL makes every fork dearer

    return hashlib.blake2b(canonical_text(document).encode(), digest_size=16).hexdigest()


def referenced_definitions(document: Any) -> list[tuple[int, str, Any]]:
    """Returns positions of tasks, names of their definitions and inputs, also of an invalid job.

    An unknown definition can then be reported together with the other problems.
    """
    tasks = document.get("tasks") if isinstance(document, dict) else None
    return [
        (index, task["name"], task.get("input"))
        for index, task in enumerate(tasks if isinstance(tasks, list) else ())
        if isinstance(task, dict) and is_name(task.get("name"))
    ]


def unknown_definition(index: int, name: str) -> Problem:
    """Returns the problem of a task that names a definition that does not exist."""
    return Problem(path=f"tasks[{index}].name", message=NO_DEFINITION.format(name))


def builtin_refused(index: int, name: str) -> Problem:
    """Returns the problem of a task that names a built-in definition where none is allowed."""
    message = (
        f"the built-in definition {name!r} is switched off for the API (the setting"
        " api.builtin_definitions): name a stored definition; see `longshore definitions list`"
    )
    return Problem(path=f"tasks[{index}].name", message=message)


def override_problems(index: int, definition: Definition, task_input: Any) -> list[Problem]:
    """Returns the options that an input sets although its definition does not allow it."""
    if not isinstance(task_input, dict):
        return []
    options, overridable = definition.options, definition.overridable
    _, refused = merge_input(definition.runner, options, overridable, task_input)
    return [
        Problem(
            path=f"tasks[{index}].input.{short_name(name)}",
            message=override_problem(definition.name, short_name(name)),
        )
        for name in refused[:PROBLEM_LIMIT]
    ]


def _read_task(reader: DocumentReader, task: Any, path: str) -> TaskRequest:
    if not isinstance(task, dict):
        reader.add(path, "expected an object with 'taskId' and 'name'")
        return TaskRequest(key="")
    if not task.keys() <= _TASK_FIELDS.keys():
        reader.reject_unknown(task, _TASK_FIELDS, path)
    try:
        options = _valid_options(*map(task.get, _OPTIONS))
    except (TypeError, ValueError):
        options = _read_options(reader, task, path)
    if (input_ := task.get("input")) is not None:
        reader.read(input_, f"{path}.input", check_json)
    parents = reader.field(task, "dependsOn", path, _read_keys, ())
    key = key if isinstance(key := task.get("taskId"), str) else ""
    return TaskRequest(key=key, parents=parents, input=input_, **options)


@lru_cache(maxsize=1024, typed=True)  # by type too, because 1 equals true
def _valid_options(*values: Any) -> dict[str, Any]:
    """Returns options that many tasks share, from the values of ``_OPTIONS``.

    Raises:
        TypeError: a value has no hash.
        ValueError: there is a problem.
    """
    reader = DocumentReader()
    options = _read_options(reader, dict(zip(_OPTIONS, values, strict=True)), "")
    if reader.problems:
        raise ValueError
    return options


def _read_options(reader: DocumentReader, task: dict[str, Any], path: str) -> dict[str, Any]:
    if task.get("name") is None:
        reader.add(f"{path}.name", "expected the name of a definition, such as 'command'")
    if task.get("delay") is not None and task.get("runAt") is not None:
        reader.add(f"{path}.runAt", "give either 'delay' or 'runAt', not both")
    return {
        attribute: value
        for name, (attribute, read) in _OPTIONS.items()
        if (value := reader.field(task, name, path, read)) is not None
    }


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise expected("1 to 200 printable characters")
    return value


def _read_keys(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise expected("a list of task ids")
    return tuple(value)


def _read_delay(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise expected("a number of seconds", value)
    if not 0 <= value <= MAX_DELAY.total_seconds():
        raise expected(f"0 to {MAX_DELAY.days} days, in seconds")
    return timedelta(seconds=value)


def _read_time(value: Any) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise expected("a time such as 2030-01-31T12:00:00Z", value) from None
    if moment.tzinfo is None:
        raise expected("a time with its zone, such as 2030-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise expected("a time between the years 1 and 9999", value) from None


_read_attempts = integer_reader(1, MAX_ATTEMPTS)
_read_priority = choice_reader({priority.name.lower(): priority for priority in Priority})
_OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("definition", read_name),
    "queue": ("queue", read_name),
    "priority": ("priority", _read_priority),
    "delay": ("delay", _read_delay),
    "runAt": ("run_at", _read_time),
    "maxAttempts": ("max_attempts", _read_attempts),
}


_TASK_FIELDS = dict.fromkeys(("taskId", "name", "dependsOn", "input", *_OPTIONS))


def problems_of(
    tasks: Sequence[TaskRequest], *, limit: int, existing: Collection[str] = ()
) -> list[Problem]:
    """Returns the problems of these tasks: the first ``PROBLEM_LIMIT``, and how many more.

    Args:
        limit: The maximum number of tasks of the whole job.
        existing: The keys of the tasks that the job already has.
    """
    keys = {task.key for task in tasks}
    if (
        0 < len(keys) == len(tasks) <= limit - len(existing)
        and not any(task.parents for task in tasks)
        and keys.isdisjoint(existing)
        and all(map(TASK_KEY_PATTERN.fullmatch, keys))
    ):
        return []
    problems = _all_problems(tasks, limit, frozenset(existing))
    shown = list(islice(problems, PROBLEM_LIMIT))
    more = sum(1 for _ in problems)
    if more:
        shown.append(Problem(path="tasks", message=f"{more:,} more problems are not shown"))
    return shown


def _all_problems(
    tasks: Sequence[TaskRequest], limit: int, existing: frozenset[str]
) -> Iterator[Problem]:
    count = len(tasks) + len(existing)
    if not tasks:
        yield Problem(path="tasks", message="there must be at least one task")
    if count > limit:
        message = f"{count:,} tasks are more than the {limit:,} that a job may have"
        yield Problem(path="tasks", message=message)
    indexes: dict[str, int] = {}
    for index, task in enumerate(tasks):
        indexes.setdefault(task.key, index)
    # In a fixed order, unlike a set's, so that the same request gets the same suggestion.
    similar = _SimilarNames([*indexes, *sorted(existing)])
    for index, task in enumerate(tasks):
        yield from _task_problems(task, index, indexes, existing, similar)
    # Without edges that are problems themselves, and without edges to existing tasks, none of which
    # can depend on a new task.
    parents = [
        [indexes[key] for key in task.parents if key in indexes and key != task.key]
        for task in tasks
    ]
    for cycle in _cycles(parents):
        start = cycle.index(min(cycle))
        keys = [tasks[index].key for index in cycle[start:] + cycle[:start]]
        position = tasks[cycle[start]].parents.index(keys[1])
        yield Problem(
            path=f"tasks[{cycle[start]}].dependsOn[{position}]",
            message=f"each of these tasks depends on the next: {_format_cycle(keys)}",
        )


def _task_problems(
    task: TaskRequest,
    index: int,
    indexes: dict[str, int],
    existing: frozenset[str],
    similar: _SimilarNames,
) -> Iterator[Problem]:
    path = f"tasks[{index}]"
    if not TASK_KEY_PATTERN.fullmatch(task.key):
        allowed = "1 to 128 letters, digits, '-' and '_' (ASCII only)"
        message = f"{_quote(task.key)} is not a task id: use {allowed}"
        yield Problem(path=f"{path}.taskId", message=message)
    if indexes[task.key] != index or task.key in existing:
        first = "a task of this job" if task.key in existing else f"tasks[{indexes[task.key]}]"
        message = f"{_quote(task.key)} is already the id of {first}"
        yield Problem(path=f"{path}.taskId", message=message)
    seen: dict[str, int] = {}
    for position, parent in enumerate(task.parents):
        first_position = seen.setdefault(parent, position)
        if first_position != position:
            message = f"{_quote(parent)} is already named at dependsOn[{first_position}]"
        elif parent == task.key:
            message = f"{_quote(parent)} depends on itself"
        elif parent not in indexes and parent not in existing:
            hint = similar.hint(parent, exclude=task.key)
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
