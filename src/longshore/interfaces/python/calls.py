"""Calls: task functions with their arguments, not run but described.

A call that is an argument of another is a dependency. What is submitted is a graph of calls; each
call object is one task, however often it is used, and gets a key from the name of its function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from longshore.core.documents import result_reference
from longshore.core.jobs.dag import TASK_KEY_PATTERN
from longshore.core.tasks.states import Priority
from longshore.core.text.durations import parse_duration
from longshore.errors import UsageError

if TYPE_CHECKING:
    from longshore.interfaces.python.functions import TaskFunction

ResultT = TypeVar("ResultT")

PRIORITIES = {priority.name.lower(): priority for priority in Priority}
_MAX_STEM_LENGTH = 100  # room for a number behind it
_INVALID_KEY_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task is to be run, where it differs from its definition; None: as that says."""

    key: str | None = None
    queue: str | None = None
    priority: str | None = None
    max_attempts: int | None = None
    delay: str | float | timedelta | None = None
    run_at: datetime | None = None

    def document_fields(self) -> dict[str, Any]:
        """As a submitted document has them, but for the key.

        Raises:
            UsageError: one of them cannot be meant.
        """
        if self.delay is not None and self.run_at is not None:
            message = "give either `delay` or `run_at`, not both"
            raise UsageError(message)
        fields = {
            "queue": self.queue,
            "priority": self.priority,
            "maxAttempts": self.max_attempts,
            "delay": None if self.delay is None else _delay_seconds(self.delay),
            "runAt": None if self.run_at is None else _format_run_at(self.run_at),
        }
        return {name: value for name, value in fields.items() if value is not None}


def _delay_seconds(delay: object) -> float:
    try:
        return parse_duration(delay).total_seconds()
    except ValueError as error:
        message = f"delay: {error}"
        raise UsageError(message) from error


def _format_run_at(moment: datetime) -> str:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        message = f"run_at must be a datetime with a time zone, not {moment!r}"
        raise UsageError(message)
    return moment.isoformat()


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[ResultT]):
    """A task to be: a function and what it will be called with."""

    task: TaskFunction[..., Any, ResultT]
    arguments: Mapping[str, Any]  # JSON, but for the calls whose results will stand there
    parents: tuple[Call[Any], ...] = ()
    options: TaskOptions = field(default_factory=TaskOptions)

    def with_options(
        self,
        *,
        key: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        max_attempts: int | None = None,
        delay: str | float | timedelta | None = None,
        run_at: datetime | None = None,
        after: Iterable[Call[Any]] = (),
    ) -> Call[ResultT]:
        """Another call like this one, to be run differently; this one stays as it is.

        Args:
            key: What the task is called inside its job; else made from the function's name.
            after: Calls that must have completed before, beside those whose results it gets.
        """
        given: dict[str, Any] = {
            "key": key,
            "queue": queue,
            "priority": priority,
            "max_attempts": max_attempts,
            "delay": delay,
            "run_at": run_at,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        wishes = replace(self.options, **changed)
        wishes.document_fields()
        if key is not None and not TASK_KEY_PATTERN.fullmatch(key):
            message = f"a key has 1 to 128 letters, digits, '-' and '_', which {key!r} has not"
            raise UsageError(message)
        parents = tuple(dict.fromkeys((*self.parents, *_require_calls(after))))
        return replace(self, parents=parents, options=wishes)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.task.__name__}.of({arguments})"


def _require_calls(values: Iterable[Any]) -> list[Call[Any]]:
    calls = list(values)
    for one in calls:
        if not isinstance(one, Call):
            message = f"expected a call, such as `fetch.of(url)`, not {one!r}"
            raise UsageError(message)
    return calls


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Calls that are submitted together, each with its key, parents before their dependents."""

    keys: Mapping[Call[Any], str]
    requested: tuple[Call[Any], ...]  # those whose results were asked for

    @classmethod
    def from_calls(cls, requested: Sequence[Call[Any]]) -> CallGraph:
        """All that is needed for the results of these calls.

        Raises:
            UsageError: there is no call, or two have the same key.
        """
        calls = _topological_order(_require_calls(requested))
        if not calls:
            message = "there is no task to submit"
            raise UsageError(message)
        return cls(_assign_keys(calls), tuple(requested))

    @property
    def tasks(self) -> dict[str, TaskFunction[..., Any, Any]]:
        """The task function of each task, by key."""
        return {key: call.task for call, key in self.keys.items()}

    def document(self, *, name: str | None = None) -> dict[str, Any]:
        """The job as a client submits it."""
        tasks = [self._task(call, key) for call, key in self.keys.items()]
        return {"name": name or self.requested[-1].task.__name__[:_MAX_STEM_LENGTH], "tasks": tasks}

    def _task(self, call: Call[Any], key: str) -> dict[str, Any]:
        task = {
            "taskId": key,
            "name": call.task.name,
            "input": {"kwargs": self._encode_value(dict(call.arguments))},
            **call.options.document_fields(),
        }
        if call.parents:
            task["dependsOn"] = [self.keys[parent] for parent in call.parents]
        return task

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
    ordered: dict[Call[Any], None] = {}
    open_ = [(call, False) for call in reversed(requested)]
    while open_:
        call, parents_are_in = open_.pop()
        if call in ordered:
            continue
        if parents_are_in:
            ordered[call] = None
        else:
            open_.append((call, True))
            open_ += [(parent, False) for parent in reversed(call.parents)]
    return list(ordered)


def _assign_keys(calls: Sequence[Call[Any]]) -> dict[Call[Any], str]:
    given = Counter(call.options.key for call in calls if call.options.key is not None)
    for key, count in given.items():
        if count > 1:
            message = f"{count} tasks of the job have the key {key!r}; give each its own"
            raise UsageError(message)
    names = Counter(_stem_of(call) for call in calls if call.options.key is None)
    numbers: Counter[str] = Counter()
    taken = set(given)
    keys: dict[Call[Any], str] = {}
    for call in calls:
        keys[call] = call.options.key or _unused_key(_stem_of(call), names, numbers, taken)
        taken.add(keys[call])
    return keys


def _stem_of(call: Call[Any]) -> str:
    return _INVALID_KEY_CHARACTERS.sub("_", call.task.__name__)[:_MAX_STEM_LENGTH]


def _unused_key(stem: str, names: Counter[str], numbers: Counter[str], taken: set[str]) -> str:
    """The function's name if no other task has it, else that with a number, from 1."""
    if names[stem] == 1 and stem not in taken:
        return stem
    while True:
        numbers[stem] += 1
        key = f"{stem}-{numbers[stem]}"
        if key not in taken:
            return key
