"""What a client submits: a job as a plain document, read with every problem reported at once.

The document is what comes out of JSON or YAML: ``{"tasks": [{"taskId", "name", "dependsOn"?,
"input"?, "queue"?, "priority"?, "delay"?, "runAt"?, "maxAttempts"?}], "name"?}``. Nothing here
knows definitions or the ledger; whether names exist is checked where they are kept.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.dag import Node, Problem, problems_of
from longshore.core.ids import is_name
from longshore.core.states import Priority
from longshore.errors import InvalidJob

_JOB_FIELDS = ("tasks", "name")
_TASK_FIELDS = (
    *("taskId", "name", "dependsOn", "input", "queue", "priority", "delay", "runAt"),
    "maxAttempts",
)
LONGEST_DELAY = timedelta(days=366)
MOST_ATTEMPTS = 100


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


def read_job(document: Any, *, limit: int) -> JobRequest:
    """The request that a document makes.

    Raises:
        InvalidJob: with every problem and where it is.
    """
    reader = _Reader()
    if not isinstance(document, Mapping):
        raise InvalidJob([Problem(path="", message="expected an object with a list 'tasks'")])
    reader.refuse_unknown(document, _JOB_FIELDS, "")
    name = reader.optional(document, "name", "", _text)
    tasks = document.get("tasks")
    if not isinstance(tasks, list):
        reader.add("tasks", "expected a list of tasks")
        tasks = []
    requests = [reader.task(task, f"tasks[{index}]") for index, task in enumerate(tasks)]
    if isinstance(document.get("tasks"), list):
        nodes = [Node(key=request.key, parents=request.parents) for request in requests]
        reader.problems += problems_of(nodes, limit=limit)
    if reader.problems:
        raise InvalidJob(reader.problems)
    return JobRequest(tasks=tuple(requests), name=name)


def canonical_hash(document: Any) -> str:
    """The same for two documents that mean the same: order of fields and spaces do not count."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


class _Reader:
    """Reads values and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))

    def refuse_unknown(self, value: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
        for field in value:
            if field not in known:
                where = f"{path}.{field}" if path else str(field)
                self.add(where, f"unknown field; expected one of {', '.join(known)}")

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
        if not isinstance(value, Mapping):
            self.add(path, "expected an object with 'taskId' and 'name'")
            return TaskRequest(key="", definition="")
        self.refuse_unknown(value, _TASK_FIELDS, path)
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


def _fail(message: str) -> ValueError:
    return ValueError(message)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise _fail("expected 1 to 200 printable characters")
    return value


def _name(value: Any) -> str:
    if not is_name(value):
        raise _fail(f"expected a name of 1 to 64 letters, digits, '-' and '_', not {value!r}")
    return str(value)


def _keys(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise _fail("expected a list of task ids")
    return tuple(value)


def _priority(value: Any) -> Priority:
    names = {priority.name.lower(): priority for priority in Priority}
    if not isinstance(value, str) or value not in names:
        raise _fail(f"expected one of {', '.join(names)}, not {value!r}")
    return names[value]


def _delay(value: Any) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _fail(f"expected a number of seconds, not {value!r}")
    if not 0 <= value <= LONGEST_DELAY.total_seconds():
        raise _fail(f"expected 0 to {LONGEST_DELAY.days} days, in seconds")
    return timedelta(seconds=value)


def _moment(value: Any) -> datetime:
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _fail(f"expected a time such as 2030-01-31T12:00:00Z, not {value!r}") from None
    if moment.tzinfo is None:
        raise _fail("expected a time with its zone, such as 2030-01-31T12:00:00Z")
    return moment.astimezone(UTC)


def _attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ATTEMPTS:
        raise _fail(f"expected a whole number from 1 to {MOST_ATTEMPTS}, not {value!r}")
    return value


def _json(value: Any) -> None:
    """Refuse what JSON cannot carry: NaN, text that is no Unicode, keys that are not text."""
    open_ = [value]
    while open_:
        item = open_.pop()
        if isinstance(item, Mapping):
            if not all(isinstance(key, str) for key in item):
                raise _fail("expected text as the keys of every object")
            open_ += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple):
            open_ += item
        elif isinstance(item, str):
            _refuse_surrogates(item)
        elif isinstance(item, float) and not math.isfinite(item):
            raise _fail("expected finite numbers")
        elif not (item is None or isinstance(item, bool | int | float)):
            raise _fail(f"expected a JSON value, not {type(item).__name__}")


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _fail("expected valid Unicode, found a lone surrogate") from None
