"""What a task function takes and gives, as its annotations say, held to it by pydantic.

Arguments are checked twice: where the task is built, so that the mistake is told where it was made,
and in the child, because whoever wrote the input may have been anybody. Both ways they travel as
JSON. The result is held to its annotation too: what another task or ``result()`` gets is what the
function promises.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from longshore.core.documents import RESULT_REFERENCE
from longshore.core.jobs.submission import MAX_INPUT_DEPTH
from longshore.errors import InvalidInput, UsageError
from longshore.interfaces.python.calls import Call

# What ``*args`` and ``**kwargs`` come as, when each of them is of some type.
_VARIADIC: dict[Any, Callable[[Any], Any]] = {
    inspect.Parameter.VAR_POSITIONAL: lambda hint: types.GenericAlias(tuple, (hint, ...)),
    inspect.Parameter.VAR_KEYWORD: lambda hint: types.GenericAlias(dict, (str, hint)),
}


class FunctionSignature:
    """The parameters and the result of one function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        hints = self._hints(function)
        self._parameters = {
            parameter.name: self._adapter(_annotation(parameter, hints), repr(parameter.name))
            for parameter in self._signature.parameters.values()
        }
        self._return_type = hints.get("return", Any)
        self._result = self._adapter(self._return_type, "the result")

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            message = (
                f"the annotations of {self._name!r} cannot be read: {error}; what they name must"
                " be there when the program runs, not only for a type checker"
            )
            raise UsageError(message) from error

    def _adapter(self, hint: Any, subject: str) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(hint)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            message = (
                f"{subject} of {self._name!r} cannot be carried to a worker:"
                f" {_type_name(hint)} has no"
                " form in JSON; use plain values, dataclasses or pydantic models"
            )
            raise UsageError(message) from error

    def dump_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments by the names of their parameters, checked, as JSON; calls stay in place.

        An argument with another task's result in it is checked when the result is there.

        Raises:
            InvalidInput: with every problem.
        """
        try:
            given = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput(self._name, [str(error)]) from None
        problems: list[str] = []
        written = {
            name: self._dump_argument(name, value, problems) for name, value in given.items()
        }
        if problems:
            raise InvalidInput(self._name, problems)
        return written

    def _dump_argument(self, name: str, value: Any, problems: list[str]) -> Any:
        adapter = self._parameters[name]
        try:
            if any(True for _ in calls_in(value)):
                return _dump_around_calls(value)
            written = adapter.dump_python(adapter.validate_python(value), mode="json")
            text = json.dumps(written, ensure_ascii=False)
        except ValidationError as error:
            problems += _problems_of(error, name)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            problems.append(f"{name} cannot be written as JSON: {error}")
        else:
            if RESULT_REFERENCE not in text:
                return written
            problems.append(
                f"{name} must not contain {RESULT_REFERENCE!r}, which stands for a result"
            )
        return None

    def load_arguments(self, document: Mapping[str, Any]) -> inspect.BoundArguments:
        """The inverse of ``bound``, when every result is in its place.

        Raises:
            InvalidInput: with every problem.
        """
        problems = [
            f"there is no parameter {name!r}" for name in document if name not in self._parameters
        ]
        given: dict[str, Any] = {}
        for name, adapter in self._parameters.items():
            if name not in document:
                problems += self._missing_problem(name)
                continue
            try:
                given[name] = adapter.validate_json(json.dumps(document[name]))
            except ValidationError as error:
                problems += _problems_of(error, name)
        if problems:
            raise InvalidInput(self._name, problems)
        return inspect.BoundArguments(self._signature, given)

    def _missing_problem(self, name: str) -> list[str]:
        parameter = self._signature.parameters[name]
        optional = parameter.default is not parameter.empty or parameter.kind in _VARIADIC
        return [] if optional else [f"{name} is missing"]

    def dump_result(self, value: Any) -> Any:
        """A result as JSON.

        Raises:
            TypeError: it is not what the function promises, or JSON cannot carry it.
        """
        try:
            return self._result.dump_python(self._result.validate_python(value), mode="json")
        except ValidationError as error:
            wrong = "; ".join(_problems_of(error, "result"))
            message = f"{self._name!r} promises {_type_name(self._return_type)}: {wrong}"
            raise TypeError(message) from None
        except PydanticSerializationError as error:
            message = f"the result of {self._name!r} cannot be kept as JSON: {error}"
            raise TypeError(message) from error

    def load_result(self, document: Any) -> Any:
        """The inverse of ``dump_result``.

        Raises:
            UsageError: what is kept does not fit the function as it is now.
        """
        try:
            return self._result.validate_json(json.dumps(document))
        except ValidationError as error:
            wrong = "; ".join(_problems_of(error, "result"))
            message = f"what is kept is not what {self._name!r} promises now: {wrong}"
            raise UsageError(message) from None


def _annotation(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    hint = hints.get(parameter.name, Any)
    return _VARIADIC[parameter.kind](hint) if parameter.kind in _VARIADIC else hint


def calls_in(value: Any) -> Iterator[Call[Any]]:
    """The calls in an argument, in lists and dicts too, in the order in which they stand."""
    open_ = [(value, 0)]
    while open_:
        item, depth = open_.pop()
        if isinstance(item, Call):
            yield item
        # Deeper than any input may be: it is refused later, also if it contains itself.
        elif depth <= MAX_INPUT_DEPTH and isinstance(item, list | tuple | dict):
            inner = item.values() if isinstance(item, dict) else item
            open_ += [(one, depth + 1) for one in reversed(list(inner))]


def _dump_around_calls(value: Any) -> Any:
    """JSON but for the calls."""
    if isinstance(value, Call):
        return value
    if isinstance(value, list | tuple):
        return [_dump_around_calls(item) for item in value]
    if isinstance(value, dict):
        return {_checked_key(name): _dump_around_calls(item) for name, item in value.items()}
    return to_jsonable_python(value)


def _checked_key(name: Any) -> str:
    if not isinstance(name, str) or name == RESULT_REFERENCE:
        message = f"{name!r} cannot be a key beside the result of another task"
        raise ValueError(message)
    return name


def _problems_of(error: ValidationError, name: str) -> list[str]:
    """What is wrong and where; not what was given, which may be secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [f"{name}{_format_path(one['loc'])}: {one['msg']}" for one in found]


def _format_path(location: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
