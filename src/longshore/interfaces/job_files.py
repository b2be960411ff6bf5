"""Job files: a job together with the definitions that it needs, in one document.

``{"definitions": [{"name", "runner", …}], "tasks": […], "name"?}``. All of it is checked before
anything is stored, and every problem is reported with its path, so that bad input changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from longshore.core.backoff import RetryPolicy
from longshore.core.child_limits import Isolation, Limits
from longshore.core.dag import Problem
from longshore.core.definition import BUILTIN, Definition, RunnerKind
from longshore.core.ids import is_name
from longshore.core.states import Priority
from longshore.core.submission import definitions_named_in, read_job
from longshore.durations import parse_duration
from longshore.errors import InvalidJob
from longshore.ports.definitions import Definitions
from longshore.services.producer import Accepted, Producer

DEFINITIONS = "definitions"


async def accept_file(
    document: Any,
    *,
    tenant: str,
    request_id: str,
    producer: Producer,
    definitions: Definitions,
    task_limit: int,
) -> Accepted:
    """Store the file's definitions and accept its job.

    Raises:
        InvalidJob: with every problem of both; nothing was stored.
        AlreadyExists: the request id belongs to another job.
        UsageError: the request id is not one.
    """
    own, job, problems = _split(document)
    try:
        read_job(job, limit=task_limit)
    except InvalidJob as error:
        problems += error.problems
    problems += await _unknown_names(job, {one.name for one in own}, tenant, definitions)
    if problems:
        raise InvalidJob(problems)
    for definition in own:
        await definitions.put(tenant, definition)
    return await producer.submit(tenant, request_id, job)


def _split(document: Any) -> tuple[list[Definition], Any, list[Any]]:
    if not isinstance(document, Mapping) or DEFINITIONS not in document:
        return [], document, []
    job = {name: value for name, value in document.items() if name != DEFINITIONS}
    reader = _Reader()
    return reader.definitions(document[DEFINITIONS]), job, list(reader.problems)


async def _unknown_names(
    job: Any, own: set[str], tenant: str, stored: Definitions
) -> list[Problem]:
    problems = []
    for path, name in definitions_named_in(job):
        if name not in own and name not in BUILTIN and not await stored.get(tenant, name):
            problems.append(Problem(path=path, message=f"no definition is called {name!r}"))
    return problems


class _Reader:
    """Reads definitions and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def definitions(self, value: Any) -> list[Definition]:
        if not isinstance(value, list):
            self._add(DEFINITIONS, "expected a list of definitions")
            return []
        read = [self._definition(one, f"{DEFINITIONS}[{i}]") for i, one in enumerate(value)]
        seen: set[str] = set()
        for index, one in enumerate(read):
            if one is not None and one.name in seen:
                self._add(f"{DEFINITIONS}[{index}].name", f"{one.name!r} is defined twice")
            seen |= {one.name} if one is not None else set()
        return [one for one in read if one is not None]

    def _definition(self, value: Any, path: str) -> Definition | None:
        if not isinstance(value, Mapping):
            self._add(path, "expected an object with 'name' and 'runner'")
            return None
        before = len(self.problems)
        for field in value:
            if field not in _FIELDS:
                known = ", ".join(_FIELDS)
                self._add(f"{path}.{field}", f"unknown field; expected one of {known}")
        for needed in ("name", "runner"):
            if value.get(needed) is None:
                self._add(f"{path}.{needed}", "missing")
        fields = {
            attribute: self._read(value[field], f"{path}.{field}", read)
            for field, (attribute, read) in _FIELDS.items()
            if value.get(field) is not None
        }
        if len(self.problems) > before:
            return None
        made: Definition | None = self._read(fields, path, lambda given: Definition(**given))
        return made

    def _read(self, value: Any, path: str, read: Callable[[Any], Any]) -> Any:
        try:
            return read(value)
        except (TypeError, ValueError) as error:
            self._add(path, str(error))
            return None

    def _add(self, path: str, message: str) -> None:
        self.problems.append(Problem(path=path, message=message))


def _name(value: Any) -> str:
    if not is_name(value):
        message = f"expected a name of 1 to 64 letters, digits, '-' and '_', not {value!r}"
        raise ValueError(message)
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        message = f"expected text, not {value!r}"
        raise TypeError(message)
    return value


def _one_of(names: Mapping[str, Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, str) or value not in names:
            message = f"expected one of {', '.join(names)}, not {value!r}"
            raise ValueError(message)
        return names[value]

    return read


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        message = "expected an object"
        raise TypeError(message)
    return dict(value)


def _time(value: Any) -> timedelta:
    parsed = parse_duration(value)
    if parsed <= timedelta(0):
        message = "expected a time longer than nothing"
        raise ValueError(message)
    return parsed


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        message = f"expected true or false, not {value!r}"
        raise TypeError(message)
    return value


def _codes(value: Any) -> tuple[int, ...]:
    right = isinstance(value, list) and all(type(code) is int and 0 < code < 256 for code in value)
    if not right:
        message = "expected a list of exit codes from 1 to 255"
        raise ValueError(message)
    return tuple(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        message = f"expected a whole number, not {value!r}"
        raise TypeError(message)
    return value


def _object_of(
    kind: Callable[..., Any], known: Mapping[str, tuple[str, Callable[[Any], Any]]]
) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, Mapping) or not set(value) <= set(known):
            message = f"expected an object with some of {', '.join(known)}"
            raise ValueError(message)
        return kind(**{known[name][0]: known[name][1](given) for name, given in value.items()})

    return read


_retry = _object_of(
    RetryPolicy,
    {"maxAttempts": ("max_attempts", _whole), "base": ("base", _time), "cap": ("cap", _time)},
)
_limits = _object_of(
    Limits,
    {
        "cpu": ("cpu", _time),
        "memoryBytes": ("memory_bytes", _whole),
        "openFiles": ("open_files", _whole),
        "fileBytes": ("file_bytes", _whole),
    },
)
_ISOLATIONS = {kind.value: kind for kind in Isolation}
_RUNNERS = {kind.value: kind for kind in RunnerKind}
_PRIORITIES = {priority.name.lower(): priority for priority in Priority}
# What a field is called in a file -> the attribute, and how it is read.
_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "name": ("name", _name),
    "runner": ("runner", _one_of(_RUNNERS)),
    "options": ("options", _options),
    "description": ("description", _text),
    "queue": ("queue", _name),
    "priority": ("priority", _one_of(_PRIORITIES)),
    "timeout": ("timeout", _time),
    "retry": ("retry", _retry),
    "retryOnTimeout": ("retry_on_timeout", _flag),
    "retryableExitCodes": ("retryable_exit_codes", _codes),
    "requiresReview": ("requires_review", _flag),
    "isolation": ("isolation", _one_of(_ISOLATIONS)),
    "limits": ("limits", _limits),
    "pty": ("pty", _flag),
}
