"""The options of ``@longshore.task``, read into a definition when the module is imported.

So a mistake is told where it was made, not when the first job is submitted a week later.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, TypeVar

from longshore.core.definitions.definition import Definition, Isolation, ResourceLimits, RunnerKind
from longshore.core.ids import is_name
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from longshore.core.text.durations import parse_duration
from longshore.errors import UsageError

PolicyT = TypeVar("PolicyT")

UNNAMED_DEFINITION = "unnamed"
"""What a definition is called until its function's place is known."""

_DURATION_FIELDS = frozenset({"base", "cap", "cpu"})


def definition_of(function: Callable[..., Any], options: Mapping[str, Any]) -> Definition:
    """The definition that the options ask for; what the runner needs is added at submit.

    Raises:
        UsageError: with the option that is wrong.
    """
    try:
        return _read(function, options)
    except (TypeError, ValueError) as error:
        message = f"the options of task {function.__qualname__!r} are wrong: {error}"
        raise UsageError(message) from error


def _read(function: Callable[..., Any], options: Mapping[str, Any]) -> Definition:
    if unknown := [name for name in options if name not in _OPTIONS]:
        message = f"no option is called {unknown[0]!r}; there are {', '.join(_OPTIONS)}"
        raise TypeError(message)
    given = {name: _OPTIONS[name](value) for name, value in options.items() if value is not None}
    retry, attempts = given.pop("retry", None), given.pop("max_attempts", None)
    if attempts is not None:
        retry = replace(retry or RetryPolicy(), max_attempts=attempts)
    given.setdefault("description", (inspect.getdoc(function) or "").partition("\n")[0])
    name = given.pop("name", UNNAMED_DEFINITION)
    return Definition(name=name, runner=RunnerKind.PYTHON, retry=retry, **given)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        message = f"expected text, not {value!r}"
        raise TypeError(message)
    return value


def _name(value: Any) -> str:
    if not is_name(value):
        message = f"expected a name of 1 to 64 letters, digits, '-' and '_', not {value!r}"
        raise ValueError(message)
    return str(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        message = f"expected True or False, not {value!r}"
        raise TypeError(message)
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        message = f"expected a whole number, not {value!r}"
        raise TypeError(message)
    return value


def _duration(value: Any) -> timedelta:
    parsed = parse_duration(value)
    if parsed <= timedelta(0):
        message = "must be greater than zero"
        raise ValueError(message)
    return parsed


def _priority(value: Any) -> Priority:
    if isinstance(value, Priority):
        return value
    return _choice({priority.name.lower(): priority for priority in Priority}, value)


def _isolation(value: Any) -> Isolation:
    return _choice({kind.value: kind for kind in Isolation}, value)


def _choice(names: Mapping[str, PolicyT], value: Any) -> PolicyT:
    if not isinstance(value, str) or value not in names:
        message = f"expected one of {', '.join(names)}, not {value!r}"
        raise ValueError(message)
    return names[value]


def _policy(kind: type[PolicyT]) -> Callable[[Any], PolicyT]:
    """Reads a value object, or a mapping with some of its fields."""

    def read(value: Any) -> PolicyT:
        if isinstance(value, kind):
            return value
        known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
        if not isinstance(value, Mapping) or not set(value) <= set(known):
            message = f"expected a mapping with some of {', '.join(known)}, not {value!r}"
            raise ValueError(message)
        return kind(
            **{
                name: _duration(given) if name in _DURATION_FIELDS else _integer(given)
                for name, given in value.items()
            }
        )

    return read


_OPTIONS: dict[str, Callable[[Any], Any]] = {
    "name": _name,
    "queue": _name,
    "priority": _priority,
    "timeout": _duration,
    "max_attempts": _integer,
    "retry": _policy(RetryPolicy),
    "retry_on_timeout": _boolean,
    "isolation": _isolation,
    "resources": _policy(ResourceLimits),
    "requires_review": _boolean,
    "description": _text,
}
