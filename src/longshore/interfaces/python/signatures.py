"""Checks the arguments and the result of a task function against its annotations, by pydantic.

Arguments are checked twice: where the call is built, so that the error is raised there, and in the
child, because any client may have written the input. They are passed as JSON. The result is checked
too, so that another task or ``result()`` gets the annotated type.
"""

from __future__ import annotations

import inspect
import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from longshore.core.document_reader import MAX_DEPTH
from longshore.core.documents import RESULT_REFERENCE
from longshore.errors import InvalidInput, UsageError
from longshore.interfaces.python.calls import Call

# The types of ``*args`` and ``**kwargs`` as a whole, from the type of one item.
_VARIADIC: dict[Any, Callable[[Any], Any]] = {
    inspect.Parameter.VAR_POSITIONAL: lambda hint: types.GenericAlias(tuple, (hint, ...)),
    inspect.Parameter.VAR_KEYWORD: lambda hint: types.GenericAlias(dict, (str, hint)),
}
SCALARS = frozenset({int, float, str, bool, type(None)})


class FunctionSignature:
    """The parameters and the result of one function."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        hints = self._hints(function)
        self._parameters = {
            name: self._adapter(_annotation(parameter, hints), repr(name))
            for name, parameter in self._signature.parameters.items()
        }
        # Names that as many positional arguments are bound to, which is the usual call.
        self._positional = [
            parameter.name
            for parameter in self._signature.parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        self._return_type = hints.get("return", Any)
        self._result = self._adapter(self._return_type, "the result")

    def _hints(self, function: Callable[..., Any]) -> dict[str, Any]:
        try:
            return get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise UsageError(
                f"the annotations of {self._name!r} cannot be read: {error}; the names must"
                " exist at run time, not only for a type checker"
            ) from error

    def _adapter(self, hint: Any, subject: str) -> TypeAdapter[Any]:
        try:
            return TypeAdapter(hint)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise UsageError(
                f"{subject} of {self._name!r} cannot be passed to a worker:"
                f" {_type_name(hint)} cannot be"
                " written as JSON; use plain values, dataclasses or pydantic models"
            ) from error

    def dump_arguments(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[Call[Any], ...]]:
        """Checked arguments by parameter name, as JSON, and the calls in them, which are kept.

        An argument that contains a call is checked when its result exists.

        Raises:
            InvalidInput: with every problem.
        """
        arguments: Iterable[tuple[str, Any]] = zip(self._positional, args, strict=False)
        if kwargs or not len(args) == len(self._positional) == len(self._parameters):
            try:
                arguments = self._signature.bind(*args, **kwargs).arguments.items()
            except TypeError as error:
                raise InvalidInput(self._name, [str(error)]) from None
        problems: list[str] = []
        written: dict[str, Any] = {}
        has_calls = False
        for name, value in arguments:
            written[name] = item = self._dump_argument(name, value, problems)
            has_calls = has_calls or type(item) not in SCALARS
        if problems:
            raise InvalidInput(self._name, problems)
        return written, tuple(dict.fromkeys(calls_in(written))) if has_calls else ()

    def _dump_argument(self, name: str, value: Any, problems: list[str]) -> Any:
        adapter = self._parameters[name]
        try:
            if type(value) not in SCALARS and any(True for _ in calls_in(value)):
                return _dump_around_calls(value)
            checked = adapter.validator.validate_python(value)
            written = adapter.serializer.to_python(checked, mode="json")
            if type(written) in SCALARS:
                text = written if type(written) is str else ""
            else:
                text = json.dumps(written, ensure_ascii=False)
        except ValidationError as error:
            problems += _problems_of(error, name)
        except (PydanticSerializationError, TypeError, ValueError, RecursionError) as error:
            problems.append(f"{name} cannot be written as JSON: {error}")
        else:
            if RESULT_REFERENCE not in text:
                return written
            problems.append(
                f"{name} must not contain {RESULT_REFERENCE!r}, the placeholder of a result"
            )
        return None

    def load_arguments(self, document: Mapping[str, Any]) -> inspect.BoundArguments:
        """The inverse of ``dump_arguments``, after results have replaced calls.

        Raises:
            InvalidInput: with every problem.
        """
        problems = [
            f"there is no parameter {name!r}" for name in document if name not in self._parameters
        ]
        arguments: dict[str, Any] = {}
        for name, adapter in self._parameters.items():
            if name not in document:
                parameter = self._signature.parameters[name]
                if parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
                    problems.append(f"{name} is missing")
                continue
            try:
                arguments[name] = adapter.validate_json(json.dumps(document[name]))
            except ValidationError as error:
                problems += _problems_of(error, name)
        if problems:
            raise InvalidInput(self._name, problems)
        return inspect.BoundArguments(self._signature, arguments)

    def dump_result(self, value: Any) -> Any:
        """A result as JSON.

        Raises:
            TypeError: it does not match the annotation, or it cannot be written as JSON.
        """
        try:
            return self._result.dump_python(self._result.validate_python(value), mode="json")
        except ValidationError as error:
            problems = "; ".join(_problems_of(error, "result"))
            message = f"{self._name!r} must return {_type_name(self._return_type)}: {problems}"
            raise TypeError(message) from None
        except PydanticSerializationError as error:
            message = f"the result of {self._name!r} cannot be written as JSON: {error}"
            raise TypeError(message) from error

    def load_result(self, document: Any) -> Any:
        """The inverse of ``dump_result``.

        Raises:
            UsageError: the stored result does not match the current annotation.
        """
        try:
            return self._result.validate_json(json.dumps(document))
        except ValidationError as error:
            problems = "; ".join(_problems_of(error, "result"))
            message = f"the stored result does not match what {self._name!r} returns: {problems}"
            raise UsageError(message) from None


def _annotation(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    hint = hints.get(parameter.name, Any)
    return _VARIADIC[parameter.kind](hint) if parameter.kind in _VARIADIC else hint


def calls_in(value: Any) -> Iterator[Call[Any]]:
    """The calls in an argument and in its lists and dicts, in their order."""
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, Call):
            yield item
        # A deeper value, or one that contains itself, is refused later.
        elif depth <= MAX_DEPTH and isinstance(item, list | tuple | dict):
            inner = item.values() if isinstance(item, dict) else item
            stack += [
                (child, depth + 1) for child in reversed(list(inner)) if type(child) not in SCALARS
            ]


def _dump_around_calls(value: Any) -> Any:
    """The value as JSON; calls are kept."""
    if isinstance(value, Call):
        return value
    if isinstance(value, list | tuple):
        return [_dump_around_calls(item) for item in value]
    if isinstance(value, dict):
        return {_checked_key(name): _dump_around_calls(item) for name, item in value.items()}
    return to_jsonable_python(value)


def _checked_key(name: Any) -> str:
    if not isinstance(name, str) or name == RESULT_REFERENCE:
        raise ValueError(f"{name!r} cannot be a key beside the result of another task")
    return name


def _problems_of(error: ValidationError, name: str) -> list[str]:
    """Problems with their paths, without the values, which may be secret."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    return [f"{name}{_format_path(detail['loc'])}: {detail['msg']}" for detail in details]


def _format_path(location: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not hasattr(hint, "__args__") else str(hint)
