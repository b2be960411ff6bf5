"""What a client submits: a job as a plain document, read with every problem reported at once.

The document is what comes out of JSON or YAML: ``{"tasks": [{"taskId", "name", "dependsOn"?,
"input"?, "queue"?, "priority"?, "delay"?, "runAt"?, "maxAttempts"?}], "name"?, "budget"?}``.
Nothing here knows definitions or the ledger; whether names exist is checked where they are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from reprlib import Repr
from typing import Any

from longshore.core.budgets import NO_BUDGET, Budget, read_budget
from longshore.core.ids import is_name
from longshore.core.jobs.dag import Node, Problem, problems_of
from longshore.core.tasks.states import Priority
from longshore.errors import InvalidJob

_JOB_FIELDS = ("tasks", "name", "budget")
_TASK_FIELDS = (
    *("taskId", "name", "dependsOn", "input", "queue", "priority", "delay", "runAt"),
    "maxAttempts",
)
MAX_DELAY = timedelta(days=366)
MAX_ATTEMPTS = 100
MAX_INPUT_DEPTH = 100
"""Levels of an input: whoever reads or writes it recurses, and a stack has an end."""

_MAX_INTEGER_BITS = 8192  # of a whole number: far larger ones cannot be written in decimal
_FIELD_CHARACTERS = 64
_shortened = Repr()
_shortened.maxstring = _shortened.maxother = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest:
    """A task as it was asked for; None: as its definition says."""

    key: str
    definition: str
    parents: tuple[str, ...] = ()
    input: Any = None
    queue: str | None = None
    priority: Priority | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job as it was asked for."""

    tasks: tuple[TaskRequest, ...]
    name: str | None = None
    budget: Budget = NO_BUDGET


def read_job(document: Any, *, limit: int) -> JobRequest:
    """The request that a document makes.

    Raises:
        InvalidJob: with every problem and where it is.
    """
    return _read(document, _JOB_FIELDS, limit=limit, existing=())


def read_added_tasks(
    document: Any, *, limit: int, existing: Collection[str]
) -> tuple[TaskRequest, ...]:
    """The tasks that a document adds to a job: ``{"tasks": […]}``.

    Args:
        limit: How many tasks the whole job may have.
        existing: The keys of those that it has.

    Raises:
        InvalidJob: with every problem and where it is.
    """
    return _read(document, ("tasks",), limit=limit, existing=existing).tasks


def _read(
    document: Any, fields: tuple[str, ...], *, limit: int, existing: Collection[str]
) -> JobRequest:
    reader = _JobReader()
    if not isinstance(document, dict):
        raise InvalidJob([Problem(path="", message="expected an object with a list 'tasks'")])
    reader.reject_unknown(document, fields, "")
    name = reader.optional(document, "name", "", _text)
    budget = reader.optional(document, "budget", "", read_budget) or NO_BUDGET
    tasks = document.get("tasks")
    if not isinstance(tasks, list):
        reader.add("tasks", "expected a list of tasks")
        tasks = []
    requests = [reader.task(task, f"tasks[{index}]") for index, task in enumerate(tasks)]
    if isinstance(document.get("tasks"), list):
        nodes = [Node(key=request.key, parents=request.parents) for request in requests]
        reader.problems += problems_of(nodes, limit=limit, existing=existing)
    if reader.problems:
        raise InvalidJob(reader.problems)
    return JobRequest(tasks=tuple(requests), name=name, budget=budget)


def canonical_text(document: Any) -> str:
    """A valid document as JSON; the order of fields and spaces of what was sent do not count."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=_moment_text
    )


def _moment_text(moment: datetime) -> str:
    # The one thing that ``read_job`` accepts and JSON does not know; YAML does.
    return moment.isoformat()


def canonical_hash(document: Any) -> str:
    """The same for two documents that mean the same."""
    return hashlib.sha256(canonical_text(document).encode()).hexdigest()


def referenced_definitions(document: Any) -> list[tuple[str, str]]:
    """Paths and names of definitions, also in a job that is not valid.

    So that a name which nobody knows is reported together with everything else.
    """
    tasks = document.get("tasks") if isinstance(document, dict) else None
    return [
        (f"tasks[{index}].name", task["name"])
        for index, task in enumerate(tasks if isinstance(tasks, list) else ())
        if isinstance(task, dict) and is_name(task.get("name"))
    ]


class _JobReader:
    """Reads values and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))

    def reject_unknown(self, value: Mapping[str, Any], allowed: tuple[str, ...], path: str) -> None:
        for field in value:
            if field not in allowed:
                name = str(field)[:_FIELD_CHARACTERS]
                where = f"{path}.{name}" if path else name
                expected = (
                    f"one of {', '.join(allowed)}" if len(allowed) > 1 else f"only {allowed[0]}"
                )
                self.add(where, f"unknown field; expected {expected}")

    def optional(
        self, value: Mapping[str, Any], field: str, path: str, read: Callable[[Any], Any]
    ) -> Any:
        if value.get(field) is None:
            return None
        try:
            return read(value[field])
        except ValueError as error:
            self.add(f"{path}.{field}" if path else field, str(error))
            return None

    def task(self, value: Any, path: str) -> TaskRequest:
        if not isinstance(value, dict):
            self.add(path, "expected an object with 'taskId' and 'name'")
            return TaskRequest(key="", definition="")
        self.reject_unknown(value, _TASK_FIELDS, path)
        definition = self.optional(value, "name", path, _name)
        if value.get("name") is None:
            self.add(f"{path}.name", "expected the name of a definition, such as 'command'")
        self.optional(value, "input", path, _json)
        if value.get("delay") is not None and value.get("runAt") is not None:
            self.add(f"{path}.runAt", "give either 'delay' or 'runAt', not both")
        return TaskRequest(
            key=value["taskId"] if isinstance(value.get("taskId"), str) else "",
            definition=definition or "",
            parents=self.optional(value, "dependsOn", path, _keys) or (),
            input=value.get("input"),
            queue=self.optional(value, "queue", path, _name),
            priority=self.optional(value, "priority", path, _priority),
            delay=self.optional(value, "delay", path, _delay),
            run_at=self.optional(value, "runAt", path, _moment),
            max_attempts=self.optional(value, "maxAttempts", path, _attempts),
        )


def _invalid(message: str) -> ValueError:
    return ValueError(message)


def _short_repr(value: Any) -> str:
    """What was given instead, cut: it can be anything, of any size."""
    return _shortened.repr(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise _invalid("expected 1 to 200 printable characters")
    return value


def _name(value: Any) -> str:
    if not is_name(value):
        raise _invalid(
            f"expected a name of 1 to 64 letters, digits, '-' and '_', not {_short_repr(value)}"
        )
    return str(value)


def _keys(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise _invalid("expected a list of task ids")
    return tuple(value)


def _priority(value: Any) -> Priority:
    names = {priority.name.lower(): priority for priority in Priority}
    if not isinstance(value, str) or value not in names:
        raise _invalid(f"expected one of {', '.join(names)}, not {_short_repr(value)}")
    return names[value]


def _delay(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"expected a number of seconds, not {_short_repr(value)}")
    if not 0 <= value <= MAX_DELAY.total_seconds():
        raise _invalid(f"expected 0 to {MAX_DELAY.days} days, in seconds")
    return timedelta(seconds=value)


def _moment(value: Any) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _invalid(
            f"expected a time such as 2030-01-31T12:00:00Z, not {_short_repr(value)}"
        ) from None
    if moment.tzinfo is None:
        raise _invalid("expected a time with its zone, such as 2030-01-31T12:00:00Z")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise _invalid(f"expected a time that the calendar has, not {_short_repr(value)}") from None


def _attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        raise _invalid(
            f"expected a whole number from 1 to {MAX_ATTEMPTS}, not {_short_repr(value)}"
        )
    return value


def _json(value: Any) -> None:
    """Refuse what JSON cannot carry: NaN, text that is no Unicode, keys that are not text."""
    open_ = [(value, 1)]
    while open_:
        item, depth = open_.pop()
        if isinstance(item, dict | list | tuple) and depth > MAX_INPUT_DEPTH:
            raise _invalid(f"expected at most {MAX_INPUT_DEPTH} levels of lists and objects")
        if isinstance(item, dict):
            if not all(isinstance(key, str) for key in item):
                raise _invalid("expected text as the keys of every object")
            open_ += [(inner, depth + 1) for inner in (*item.keys(), *item.values())]
        elif isinstance(item, list | tuple):
            open_ += [(inner, depth + 1) for inner in item]
        else:
            _check_scalar(item)


def _check_scalar(item: Any) -> None:
    if isinstance(item, str):
        _check_surrogates(item)
    elif isinstance(item, float) and not math.isfinite(item):
        raise _invalid("expected finite numbers")
    elif isinstance(item, int) and item.bit_length() > _MAX_INTEGER_BITS:
        raise _invalid("expected numbers that can be written down")
    elif not (item is None or isinstance(item, int | float)):
        raise _invalid(f"expected a JSON value, not {type(item).__name__}")


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _invalid("expected valid Unicode, found a lone surrogate") from None
