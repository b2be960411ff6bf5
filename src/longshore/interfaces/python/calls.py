"""Calls: task functions with their arguments, and the job document that is made of them.

A call that is an argument of another call is a dependency. A graph of calls is submitted; each call
object is one task, however often it is used, and gets a key from the name of its function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypedDict, TypeVar, Unpack

from longshore.core.definitions.definition import Definition
from longshore.core.documents import result_reference
from longshore.core.jobs.submission import TASK_KEY_PATTERN
from longshore.core.records import value
from longshore.core.text.durations import parse_duration
from longshore.errors import UsageError

if TYPE_CHECKING:
    from longshore.interfaces.python.functions import TaskFunction

ResultT = TypeVar("ResultT")

_TIME_FIELDS = frozenset({"delay", "runAt"})
MAX_STEM_LENGTH = 100  # leaves room for a number


class TaskOptions(TypedDict, total=False):
    """Options of a task; None: its definition decides."""

    queue: str | None
    priority: str | None  # high, normal or low
    max_attempts: int | None
    delay: str | float | timedelta | None  # time before it starts: 5m, 300, …
    run_at: datetime | None  # when it starts


class JobOptions(TaskOptions, total=False):
    """Options of a job; those of tasks apply to each task that does not set its own."""

    name: str | None


class SubmitOptions(JobOptions, total=False):
    """Options of one submitted job."""

    request_id: str | None  # the same id always gives the same job; default: a new one


class RunOptions(SubmitOptions, total=False):
    """Options of ``longshore.run``."""

    data_dir: str | Path | None
    settings: Mapping[str, Any] | None


def _document_fields(options: TaskOptions | None) -> dict[str, Any]:
    """The fields of a submitted task.

    Raises:
        UsageError: an option is not valid.
    """
    if not options:
        return {}
    delay, run_at = options.get("delay"), options.get("run_at")
    if delay is not None and run_at is not None:
        raise UsageError("give either `delay` or `run_at`, not both")
    fields = {
        "queue": options.get("queue"),
        "priority": options.get("priority"),
        "maxAttempts": options.get("max_attempts"),
        "delay": None if delay is None else _delay_seconds(delay),
        "runAt": None if run_at is None else _format_run_at(run_at),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _check_names(options: Mapping[str, Any], kind: Any, shown: Any) -> None:
    if options and (unknown := options.keys() - kind.__annotations__.keys()):
        names = ", ".join(shown.__annotations__)
        raise UsageError(f"no option is called {min(unknown)!r}; the options are {names}")


def _delay_seconds(delay: object) -> float:
    try:
        return parse_duration(delay).total_seconds()
    except ValueError as error:
        raise UsageError(f"delay: {error}") from error


def _format_run_at(moment: datetime) -> str:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise UsageError(f"run_at must be a datetime with a time zone, not {moment!r}")
    return moment.isoformat()


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[ResultT]):
    """A task: a function and its arguments."""

    task: TaskFunction[..., Any, ResultT]
    arguments: Mapping[str, Any]  # JSON, with calls in place of their results
    parents: tuple[Call[Any], ...] = ()
    key: str | None = None
    options: TaskOptions | None = None

    def with_options(
        self,
        *,
        key: str | None = None,
        after: Iterable[Call[Any]] = (),
        **options: Unpack[TaskOptions],
    ) -> Call[ResultT]:
        """A copy of this call with other options.

        Args:
            key: The task's key in its job; default: from the function's name.
            after: Calls that must complete first, in addition to the calls in its arguments.
            options: ``queue``, ``priority``, ``max_attempts``, and ``delay`` or ``run_at``.
        """
        _check_names(options, TaskOptions, TaskOptions)
        if key is not None and not TASK_KEY_PATTERN.fullmatch(key):
            raise UsageError(f"{key!r} is not a key: use 1 to 128 letters, digits, '-' and '_'")
        changed = TaskOptions(**{**(self.options or {}), **options})
        _document_fields(changed)  # raises if an option is not valid
        parents = tuple(dict.fromkeys((*self.parents, *_require_calls(after))))
        return replace(self, key=key or self.key, parents=parents, options=changed)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.task.__name__}.of({arguments})"


def _require_calls(values: Iterable[Any]) -> list[Call[Any]]:
    calls = list(values)
    for call in calls:
        if not isinstance(call, Call):
            raise UsageError(f"expected a call, such as `fetch.of(url)`, not {call!r}")
    return calls


class CallGraph(NamedTuple):
    """Calls that are submitted together, each with its key, parents before their dependents."""

    keys: Mapping[Call[Any], str]
    requested: tuple[Call[Any], ...]  # the calls whose results the caller wants

    @classmethod
    def from_calls(cls, requested: Sequence[Call[Any]]) -> CallGraph:
        """The calls and all of their dependencies.

        Raises:
            UsageError: there is no call, or two have the same key.
        """
        calls = _topological_order(_require_calls(requested))
        if not calls:
            raise UsageError("there is no task to submit")
        return cls(_assign_keys(calls), tuple(requested))

    @property
    def tasks(self) -> dict[str, TaskFunction[..., Any, Any]]:
        """The task function of each task, by key."""
        return {key: call.task for call, key in self.keys.items()}

    def document(self) -> dict[str, Any]:
        """The job document, without options of the job."""
        tasks = [self._task(call, key) for call, key in self.keys.items()]
        return {"name": self.requested[-1].task.__name__[:MAX_STEM_LENGTH], "tasks": tasks}

    def _task(self, call: Call[Any], key: str) -> dict[str, Any]:
        task = {"taskId": key, "name": call.task.name, "input": {"kwargs": call.arguments}}
        if call.parents:
            task["input"] = {"kwargs": self._encode_value(call.arguments)}
            task["dependsOn"] = [self.keys[parent] for parent in call.parents]
        return task | _document_fields(call.options) if call.options else task

    def _encode_value(self, value: Any) -> Any:
        if isinstance(value, Call):
            return result_reference(self.keys[value])
        if isinstance(value, list):
            return [self._encode_value(item) for item in value]
        if isinstance(value, dict):
            return {name: self._encode_value(item) for name, item in value.items()}
        return value


def _topological_order(requested: Sequence[Call[Any]]) -> list[Call[Any]]:
    """Every call once, after its parents; without recursion, because chains may be long."""
    if not any(call.parents for call in requested):
        return list(dict.fromkeys(requested))
    ordered: dict[Call[Any], None] = {}
    stack = [(call, False) for call in reversed(requested)]
    while stack:
        call, parents_done = stack.pop()
        if call in ordered:
            continue
        if parents_done:
            ordered[call] = None
        else:
            stack.append((call, True))
            stack += [(parent, False) for parent in reversed(call.parents)]
    return list(ordered)


def _assign_keys(calls: Sequence[Call[Any]]) -> dict[Call[Any], str]:
    if len(calls) == 1:
        return {calls[0]: calls[0].key or calls[0].task.key}
    explicit = Counter(call.key for call in calls if call.key is not None)
    for key, count in explicit.items():
        if count > 1:
            raise UsageError(f"{count} tasks of the job have the key {key!r}; give each its own")
    names = Counter(call.task.key for call in calls if call.key is None)
    numbers: Counter[str] = Counter()
    taken = set(explicit)
    keys: dict[Call[Any], str] = {}
    for call in calls:
        keys[call] = call.key or _unused_key(call.task.key, names, numbers, taken)
        taken.add(keys[call])
    return keys


def _unused_key(stem: str, names: Counter[str], numbers: Counter[str], taken: set[str]) -> str:
    """The function's name if only one task has it, otherwise the name and a number from 1."""
    if names[stem] == 1 and stem not in taken:
        return stem
    while True:
        numbers[stem] += 1
        key = f"{stem}-{numbers[stem]}"
        if key not in taken:
            return key


Submittable = Call[Any] | Sequence[Call[Any]] | Mapping[str, Any]


@value
class PreparedJob:
    """A job document with the definitions that it needs."""

    document: Any
    graph: CallGraph | None = None
    is_single_call: bool = False  # a call was submitted, not a list of calls
    definitions: tuple[Definition, ...] = ()


def prepare_job(work: Submittable, options: JobOptions) -> PreparedJob:
    """The job of a call, several calls, or a document.

    Raises:
        UsageError: it is none of them, a worker could not find a function, or an option is not
            valid.
    """
    _check_names(options, JobOptions, SubmitOptions)
    fields = _document_fields(options)
    if isinstance(work, Mapping):
        return PreparedJob(document=_apply_options(work, options.get("name"), fields))
    if is_single := isinstance(work, Call):
        work = [work]
    if not isinstance(work, Sequence) or isinstance(work, str):
        message = f"expected a call such as `fetch.of(url)`, calls, or a document, not {work!r}"
        raise UsageError(message)
    graph = CallGraph.from_calls(work)
    return PreparedJob(
        document=_apply_options(graph.document(), options.get("name"), fields),
        graph=graph,
        is_single_call=is_single,
        definitions=_definitions_of(graph),
    )


def _apply_options(
    document: Mapping[str, Any], name: str | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """The document with the name of the job, and its options for tasks that do not set them."""
    applied = {**document, "name": name} if name else dict(document)
    tasks = document.get("tasks")
    if fields and isinstance(tasks, list):  # otherwise the service reports what is wrong with it
        applied["tasks"] = [
            _with_defaults(task, fields) if isinstance(task, dict) else task for task in tasks
        ]
    return applied


def _with_defaults(task: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    # A job starts with its roots, and a task with its own time keeps it.
    if task.get("dependsOn") or _TIME_FIELDS & task.keys():
        fields = {name: value for name, value in fields.items() if name not in _TIME_FIELDS}
    return {**fields, **task}


def _definitions_of(graph: CallGraph) -> tuple[Definition, ...]:
    definitions: dict[str, Definition] = {}
    for task in dict.fromkeys([call.task for call in graph.keys]):
        definition = task.definition()
        if definitions.setdefault(definition.name, definition) != definition:
            message = f"two task functions are named {definition.name!r}; give each its own name"
            raise UsageError(message)
    return tuple(definitions.values())
