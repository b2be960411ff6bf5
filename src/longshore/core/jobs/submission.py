"""Job documents: what a client submits, read with every problem reported at once.

A document is the value of a JSON or YAML text: ``{"tasks": [{"taskId", "name", "dependsOn"?,
"input"?, "queue"?, "priority"?, "delay"?, "runAt"?, "maxAttempts"?}], "name"?, "budget"?}``.
Whether the named definitions exist is checked by the services that store them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from longshore.core.budgets import NO_BUDGET, Budget, read_budget
from longshore.core.document_reader import (
    DocumentReader,
    check_json,
    choice_reader,
    expected,
    integer_reader,
    read_name,
)
from longshore.core.ids import is_name
from longshore.core.jobs.dag import Node, problems_of
from longshore.core.tasks.states import Priority
from longshore.errors import InvalidJob, Problem

_JOB_FIELDS = ("tasks", "name", "budget")
_TASK_FIELDS = (
    *("taskId", "name", "dependsOn", "input", "queue", "priority", "delay", "runAt"),
    "maxAttempts",
)
MAX_DELAY = timedelta(days=366)
MAX_ATTEMPTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRequest(Node):
    """A requested task; None: the definition decides."""

    definition: str
    input: Any = None
    queue: str | None = None
    priority: Priority | None = None
    delay: timedelta | None = None
    run_at: datetime | None = None
    max_attempts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A requested job."""

    tasks: tuple[TaskRequest, ...]
    name: str | None = None
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
    budget = reader.field(document, "budget", "", read_budget, NO_BUDGET)
    requests: list[TaskRequest] = []
    if isinstance(tasks := document.get("tasks"), list):
        requests += [_read_task(reader, task, f"tasks[{i}]") for i, task in enumerate(tasks)]
        reader.problems += problems_of(requests, limit=limit, existing=existing or ())
    else:
        reader.add("tasks", "expected a list of tasks")
    if reader.problems:
        raise InvalidJob(reader.problems)
    return JobRequest(tasks=tuple(requests), name=name, budget=budget)


def canonical_text(document: Any) -> str:
    """Returns a valid document as JSON with sorted fields and without spaces."""
    # A time is the only value that ``read_job`` accepts and JSON does not have.
    return json.dumps(document, sort_keys=True, separators=(",", ":"), default=datetime.isoformat)


def canonical_hash(document: Any) -> str:
    """Returns a hash that is equal for documents with the same content."""
    return hashlib.sha256(canonical_text(document).encode()).hexdigest()


def referenced_definitions(document: Any) -> list[tuple[str, str]]:
    """Returns paths and names of definitions, also of an invalid job.

    An unknown definition can then be reported together with the other problems.
    """
    tasks = document.get("tasks") if isinstance(document, dict) else None
    return [
        (f"tasks[{index}].name", task["name"])
        for index, task in enumerate(tasks if isinstance(tasks, list) else ())
        if isinstance(task, dict) and is_name(task.get("name"))
    ]


def _read_task(reader: DocumentReader, value: Any, path: str) -> TaskRequest:
    if not isinstance(value, dict):
        reader.add(path, "expected an object with 'taskId' and 'name'")
        return TaskRequest(key="", definition="")
    reader.reject_unknown(value, _TASK_FIELDS, path)
    if value.get("name") is None:
        reader.add(f"{path}.name", "expected the name of a definition, such as 'command'")
    reader.field(value, "input", path, check_json)
    if value.get("delay") is not None and value.get("runAt") is not None:
        reader.add(f"{path}.runAt", "give either 'delay' or 'runAt', not both")
    return TaskRequest(
        key=value["taskId"] if isinstance(value.get("taskId"), str) else "",
        definition=reader.field(value, "name", path, read_name, ""),
        parents=reader.field(value, "dependsOn", path, _read_keys, ()),
        input=value.get("input"),
        queue=reader.field(value, "queue", path, read_name),
        priority=reader.field(value, "priority", path, _read_priority),
        delay=reader.field(value, "delay", path, _read_delay),
        run_at=reader.field(value, "runAt", path, _read_time),
        max_attempts=reader.field(value, "maxAttempts", path, _read_attempts),
    )


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
