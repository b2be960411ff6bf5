"""From what a client is handed to what is sent: a document, and the definitions that it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

from longshore.core.definitions.definition import Definition
from longshore.errors import UsageError
from longshore.interfaces.python.calls import Call, CallGraph, TaskOptions

Submittable = Call[Any] | Sequence[Call[Any]] | Mapping[str, Any]

_TIME_FIELDS = frozenset({"delay", "runAt"})


class JobOptions(TypedDict, total=False):
    """What can be said of a job as a whole."""

    name: str | None  # what to call it
    queue: str | None  # for every task that does not name one
    priority: str | None  # likewise: high, normal or low
    max_attempts: int | None  # likewise
    delay: str | float | timedelta | None  # how long it waits before it begins: 5m, 300, …
    run_at: datetime | None  # when it begins


class SubmitOptions(JobOptions, total=False):
    """The same, and what makes a request one."""

    request_id: str | None  # the same id gives the same job, however often; else one is made


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """A job that is ready to be sent."""

    document: Any
    graph: CallGraph | None = None
    is_single_call: bool = False  # one call was given, not a list of them
    definitions: tuple[Definition, ...] = ()


def prepare_job(work: Submittable, options: JobOptions) -> PreparedJob:
    """What is to be sent for a call, several calls, or a document.

    Raises:
        UsageError: it is none of them, a worker could not find a function, or an option cannot be
            meant.
    """
    name, fields = _split_options(options)
    if isinstance(work, Mapping):
        own = {"name": name} if name else {}
        return PreparedJob(document=_apply_defaults({**work, **own}, fields))
    if not isinstance(work, Call | Sequence) or isinstance(work, str):
        message = f"expected a call such as `fetch.of(url)`, calls, or a document, not {work!r}"
        raise UsageError(message)
    single = isinstance(work, Call)
    graph = CallGraph.from_calls([work] if isinstance(work, Call) else work)
    return PreparedJob(
        document=_apply_defaults(graph.document(name=name), fields),
        graph=graph,
        is_single_call=single,
        definitions=_definitions_of(graph),
    )


def _split_options(options: JobOptions) -> tuple[str | None, dict[str, Any]]:
    options_left: dict[str, Any] = dict(options)
    if unknown := options_left.keys() - JobOptions.__annotations__.keys():
        known = ", ".join(SubmitOptions.__annotations__)
        message = f"no option is called {min(unknown)!r}; there are {known}"
        raise UsageError(message)
    name = options_left.pop("name", None)
    return name, TaskOptions(**options_left).document_fields()


def _apply_defaults(document: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the options of the job for each task that does not set them."""
    tasks = document.get("tasks")
    if not fields or not isinstance(tasks, list):
        return document  # the service reports what is wrong with it
    return {**document, "tasks": [_task_with_defaults(task, fields) for task in tasks]}


def _task_with_defaults(task: Any, fields: Mapping[str, Any]) -> Any:
    if not isinstance(task, dict):
        return task
    # A job begins with its roots; and a task that has its own time keeps it.
    timed = bool(task.get("dependsOn") or _TIME_FIELDS & task.keys())
    defaults = {
        name: value for name, value in fields.items() if not (timed and name in _TIME_FIELDS)
    }
    return {**defaults, **task}


def _definitions_of(graph: CallGraph) -> tuple[Definition, ...]:
    definitions: dict[str, Definition] = {}
    for task in dict.fromkeys(graph.tasks.values()):
        definition = task.definition()
        if definitions.setdefault(definition.name, definition) != definition:
            message = f"two task functions are named {definition.name!r}; give each its own name"
            raise UsageError(message)
    return tuple(definitions.values())
