"""Definitions as documents: what people write in files and send to the API, and what they get back.

One table says what a field is called, how it is read and how it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from longshore.core.backoff import RetryPolicy
from longshore.core.child_limits import NO_LIMITS, Isolation, Limits
from longshore.core.dag import Problem
from longshore.core.definition import Definition, RunnerKind
from longshore.core.health import HealthLimits
from longshore.core.ids import is_name
from longshore.core.states import Priority
from longshore.durations import format_duration, parse_duration
from longshore.errors import InvalidJob


def read_definitions(value: Any, path: str) -> tuple[list[Definition], list[Problem]]:
    """The definitions in a list, and everything that is wrong with them."""
    reader = _Reader()
    return reader.definitions(value, path), reader.problems


def read_definition(value: Any) -> Definition:
    """One definition.

    Raises:
        InvalidJob: with everything that is wrong with it.
    """
    reader = _Reader()
    read = reader.definition(value, "")
    if read is None:
        raise InvalidJob(reader.problems)
    return read


def definition_document(definition: Definition) -> dict[str, Any]:
    """A definition as it could be sent again, with its version; what it leaves open is null."""
    return {
        "name": definition.name,
        "version": definition.version,
        "runner": definition.runner.value,
        "options": definition.options,
        "description": definition.description,
        "queue": definition.queue,
        "priority": definition.priority.name.lower(),
        "timeout": _written(definition.timeout),
        "retry": _retry_document(definition.retry),
        "retryOnTimeout": definition.retry_on_timeout,
        "retryableExitCodes": list(definition.retryable_exit_codes),
        "requiresReview": definition.requires_review,
        "isolation": definition.isolation.value,
        "limits": _limits_document(definition.limits),
        "pty": definition.pty,
        "health": _health_document(definition.health),
    }


def _written(duration: timedelta | None) -> str | None:
    return None if duration is None else format_duration(duration)


def _retry_document(retry: RetryPolicy | None) -> dict[str, Any] | None:
    if retry is None:
        return None
    return {
        "maxAttempts": retry.max_attempts,
        "base": _written(retry.base),
        "cap": _written(retry.cap),
    }


def _limits_document(limits: Limits) -> dict[str, Any] | None:
    if limits == NO_LIMITS:
        return None
    known = {
        "cpu": _written(limits.cpu),
        "memoryBytes": limits.memory_bytes,
        "openFiles": limits.open_files,
        "fileBytes": limits.file_bytes,
    }
    return {name: value for name, value in known.items() if value is not None}


def _health_document(health: HealthLimits | None) -> dict[str, Any] | None:
    if health is None:
        return None
    known = {
        "longestRun": _written(health.longest_run),
        "healthyWithin": _written(health.healthy_within),
        "warningWithin": _written(health.warning_within),
    }
    return {name: value for name, value in known.items() if value is not None}


def _at(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


class _Reader:
    """Reads definitions and remembers what is wrong with them."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def definitions(self, value: Any, path: str) -> list[Definition]:
        if not isinstance(value, list):
            self._add(path, "expected a list of definitions")
            return []
        read = [self.definition(one, f"{path}[{i}]") for i, one in enumerate(value)]
        seen: set[str] = set()
        for index, one in enumerate(read):
            if one is not None and one.name in seen:
                self._add(f"{path}[{index}].name", f"{one.name!r} is defined twice")
            seen |= {one.name} if one is not None else set()
        return [one for one in read if one is not None]

    def definition(self, value: Any, path: str) -> Definition | None:
        if not isinstance(value, Mapping):
            self._add(path, "expected an object with 'name' and 'runner'")
            return None
        before = len(self.problems)
        for field in value:
            if field not in _FIELDS:
                known = ", ".join(_FIELDS)
                self._add(_at(path, str(field)[:64]), f"unknown field; expected one of {known}")
        for needed in ("name", "runner"):
            if value.get(needed) is None:
                self._add(_at(path, needed), "missing")
        fields = {
            attribute: self._read(value[field], _at(path, field), read)
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
_health = _object_of(
    HealthLimits,
    {
        "longestRun": ("longest_run", _time),
        "healthyWithin": ("healthy_within", _time),
        "warningWithin": ("warning_within", _time),
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
    "health": ("health", _health),
}
