"""``@longshore.task``: a function that runs here when it is called, or in a worker when submitted.

A decorated function can be called and tested like any other. ``of`` builds a task for a worker:
``count.of(fetch.of(url))`` runs nothing; it is two calls, and the second gets the result of the
first. Options are checked when the module is imported, not when the first job is submitted.

Nothing heavy is imported until a call is built or run, so that forked children stay small.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import fields, replace
from datetime import timedelta
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, NotRequired, ParamSpec, TypedDict, TypeVar, overload

from longshore.core.definitions.definition import Definition, ResourceLimits, RunnerKind
from longshore.core.definitions.reader import FIELDS, attribute_of
from longshore.core.document_reader import expected, integer_reader
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import Priority
from longshore.errors import UsageError
from longshore.interfaces.python.calls import MAX_STEM_LENGTH, Call
from longshore.interfaces.python.import_paths import ImportPath, import_path_of

if TYPE_CHECKING:
    from longshore.interfaces.python.signatures import FunctionSignature

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")
ResultT = TypeVar("ResultT")
PolicyT = TypeVar("PolicyT")

_MAX_NAME_LENGTH = 64
_HASH_LENGTH = 8
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")
_UNNAMED = "unnamed"  # until the import path of the function is resolved
_UNREAD = object()
_PLAIN_TYPES = (int, float, str, bool, type(None), None)
_Reader = Callable[[Any], Any]
NOT_PLAIN: tuple[_Reader, _Reader] = (lambda _: _UNREAD, lambda _: _UNREAD)
_DURATION_FIELDS = frozenset({"base", "cap", "cpu", "rate_limit_wait"})


class TaskFunction(Generic[P, ReturnT, ResultT]):
    """A function that workers can run; see ``task``."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, ReturnT], definition: Definition) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._definition = definition
        self._importable: Definition | None = None  # once a worker can import the function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        """Call the function in this process."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, Call):
                name = self.__name__
                raise UsageError(
                    f"{name}(...) runs the function now, and {value!r} has no result yet;"
                    f" {name}.of(...) makes a task"
                )
        return self._function(*args, **kwargs)

    # An argument is a value or the call that will return it. No type can express that for all
    # parameters, so the arguments are checked at run time.
    def of(self, *args: Any, **kwargs: Any) -> Call[ResultT]:
        """A task: this function with arguments that may be or contain other calls.

        Raises:
            InvalidInput: the arguments do not fit the function.
        """
        return Call(self, *self._signature.dump_arguments(args, kwargs))

    @functools.cached_property
    def key(self) -> str:
        """The key of its task in a job in which it is called once."""
        return _INVALID_NAME_CHARACTERS.sub("_", self.__name__)[:MAX_STEM_LENGTH]

    @functools.cached_property
    def name(self) -> str:
        """The name of its definition."""
        if self._definition.name != _UNNAMED:
            return self._definition.name
        source = ImportPath(self.__module__, self.__qualname__)
        # The function may only be called in a test; submitting it raises the error.
        with contextlib.suppress(UsageError):
            source = import_path_of(self, source.module, source.name)
        return _definition_name(source.module, source.name)

    def definition(self, *, in_process: bool = False) -> Definition:
        """The definition that is stored when a job with this task is submitted.

        Args:
            in_process: Only this process runs it, so the function need not be importable.

        Raises:
            UsageError: a worker could not import the function; the message says what to do.
        """
        if self._importable is not None and not in_process:
            return self._importable
        module, name = self.__module__, self.__qualname__
        source = ImportPath(module, name) if in_process else import_path_of(self, module, name)
        options: dict[str, Any] = {"function": source.path, "typed": True}
        if source.source_dir is not None:
            options["path"] = [source.source_dir]
        definition = replace(self._definition, name=self.name, options=options)
        if not in_process:
            self._importable = definition
        return definition

    @functools.cached_property
    def _signature(self) -> FunctionSignature:
        from longshore.interfaces.python.signatures import FunctionSignature

        return FunctionSignature(self._function, self.__name__)

    @functools.cached_property
    def _plain(self) -> tuple[_Reader, _Reader]:
        """For its keyword arguments and its result, if they seldom need pydantic."""
        try:
            signature = inspect.signature(self._function, eval_str=True)
            parameters = signature.parameters.values()
            types = {
                item.name: item.annotation
                if item.default is item.empty
                else NotRequired[item.annotation]
                for item in parameters
                if item.kind in _NAMED and _is_plain_type(item.annotation)
            }
            if len(types) == len(parameters) and _is_plain_type(signature.return_annotation):
                arguments = TypedDict("arguments", types)  # type: ignore[misc]
                return _plain_reader(arguments), _plain_reader(signature.return_annotation)
        except Exception:  # noqa: BLE001, S110 - of an annotation; the signature explains it
            pass
        return NOT_PLAIN

    def prebuild(self) -> None:
        """Build now what each forked child would otherwise build for itself.

        Not the signature of a function that seldom needs it: pydantic makes every fork dearer.
        """
        if self._plain is NOT_PLAIN:
            _ = self._signature

    def run_with(
        self, kwargs: Mapping[str, Any], *, replacement: Callable[..., Any] | None = None
    ) -> Any:
        """Check arguments from JSON, run the function, and return its result as JSON.

        Args:
            replacement: Called instead of the function, in a test.

        Raises:
            InvalidInput: the arguments do not fit the function.
            TypeError: the result does not match the return annotation.
        """
        read_arguments, read_result = self._plain
        args, plain = (), read_arguments(kwargs)
        if plain is _UNREAD:
            bound = self._signature.load_arguments(kwargs)
            args, plain = bound.args, bound.kwargs
        function: Callable[..., Any] = replacement or self._function
        result = function(*args, **plain)
        if hasattr(result, "__await__"):
            result = _run_awaitable(result)
        written = read_result(result)
        return self._signature.dump_result(result) if written is _UNREAD else written

    def load_result(self, value: Any) -> ResultT:
        """A result from JSON, with the type that the function returns."""
        result: ResultT = self._signature.load_result(value)
        return result

    def __repr__(self) -> str:
        return f"<task {self.__module__}:{self.__qualname__}>"


def _is_plain_type(hint: Any) -> bool:
    """Whether JSON has this type."""
    if isinstance(hint, UnionType) or getattr(hint, "__origin__", None) is list:
        return all(map(_is_plain_type, hint.__args__))
    return hint in _PLAIN_TYPES


def _plain_reader(hint: Any) -> _Reader:
    """Returns a function that makes of a value what pydantic would; ``_UNREAD`` if it cannot.

    A forked child copies each page of memory that it touches for the first time, and pydantic
    touches many.
    """
    from msgspec import MsgspecError
    from msgspec.json import Decoder, encode

    decode = Decoder(hint).decode

    def read(value: Any) -> Any:
        try:
            if (decoded := decode(encode(value))) == value:
                return decoded
        except (MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
            pass
        return _UNREAD

    return read


def _run_awaitable(awaitable: Any) -> Any:
    import asyncio

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())


def _definition_name(module: str, name: str) -> str:
    """A unique name from module and function, because two modules may have the same function."""
    whole = _INVALID_NAME_CHARACTERS.sub("-", f"{module}.{name}")
    if len(whole) <= _MAX_NAME_LENGTH:
        return whole
    import hashlib  # loaded here, as OpenSSL makes every fork dearer

    digest = hashlib.sha256(f"{module}:{name}".encode()).hexdigest()[:_HASH_LENGTH]
    return f"{whole[_HASH_LENGTH + 1 - _MAX_NAME_LENGTH :]}-{digest}"


@overload
def task(
    function: Callable[P, Coroutine[Any, Any, ResultT]], /
) -> TaskFunction[P, Coroutine[Any, Any, ResultT], ResultT]: ...
@overload
def task(function: Callable[P, ResultT], /) -> TaskFunction[P, ResultT, ResultT]: ...
@overload
def task(
    *,
    name: str | None = ...,
    queue: str = ...,
    priority: str = ...,
    timeout: str | float | timedelta | None = ...,
    max_attempts: int | None = ...,
    retry: RetryPolicy | Mapping[str, Any] | None = ...,
    retry_on_timeout: bool = ...,
    isolation: str = ...,
    resources: ResourceLimits | Mapping[str, Any] | None = ...,
    requires_review: bool = ...,
    description: str | None = ...,
) -> _TaskDecorator: ...
def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a task of a function, plain or async.

    Used bare (``@longshore.task``) or with options (``@longshore.task(max_attempts=5)``).

    Args:
        name: The name of its definition; default: from its module and name.
        queue: The queue of its tasks.
        priority: ``high``, ``normal`` or ``low``.
        timeout: Of each attempt, like ``90s``, a timedelta, or seconds; default: the worker's.
        max_attempts: How many attempts a task has, including the first.
        retry: ``{"max_attempts": 5, "base": "1s", "cap": "1m"}`` or a ``RetryPolicy``; default:
            that of the settings.
        retry_on_timeout: Whether an attempt that timed out is retried.
        isolation: ``fork``, ``pool`` or ``spawn``.
        resources: ``{"memory_bytes": …, "cpu": "1m", "open_files": …, "file_bytes": …,
            "processes": …}``.
        requires_review: Whether a result waits for approval.
        description: For people; default: the first line of the docstring.

    Raises:
        UsageError: it is not a function, or an option is not valid.
    """
    if function is None:
        return lambda decorated: _make_task(decorated, options)
    return _make_task(function, options)


def _make_task(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> TaskFunction[..., Any, Any]:
    shown = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        raise UsageError(f"{shown} cannot be a task: only a function defined by `def` can")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{shown} cannot be a task: it yields, and a task has one result: return a list"
        raise UsageError(message)
    return TaskFunction(function, _definition_of(function, options))


class _TaskDecorator:
    """The result of ``task`` with options; only for the type checker."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, ResultT]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, ResultT], ResultT]: ...
    @overload
    def __call__(self, function: Callable[P, ResultT], /) -> TaskFunction[P, ResultT, ResultT]: ...
    def __call__(self, function: Any, /) -> Any:
        """Make a task of the function."""


def _definition_of(function: Callable[..., Any], options: Mapping[str, Any]) -> Definition:
    """The definition of the options; submit adds the options of the runner.

    Raises:
        UsageError: an option is not valid.
    """
    try:
        if unknown := [name for name in options if name not in _OPTIONS]:
            raise ValueError(
                f"no option is called {unknown[0]!r}; the options are {', '.join(_OPTIONS)}"
            )
        values = {
            name: _OPTIONS[name](value) for name, value in options.items() if value is not None
        }
        retry, attempts = values.pop("retry", None), values.pop("max_attempts", None)
        if attempts is not None:
            retry = replace(retry or RetryPolicy(), max_attempts=attempts)
        values.setdefault("description", (inspect.getdoc(function) or "").partition("\n")[0])
        name = values.pop("name", _UNNAMED)
        return Definition(name=name, runner=RunnerKind.PYTHON, retry=retry, **values)
    except (TypeError, ValueError) as error:
        message = f"the options of task {function.__qualname__!r} are not valid: {error}"
        raise UsageError(message) from error


def _policy(kind: type[PolicyT]) -> Callable[[Any], PolicyT]:
    """Reads an instance, or a mapping with some of its fields."""

    def read(value: Any) -> PolicyT:
        if isinstance(value, kind):
            return value
        names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
        if not isinstance(value, Mapping) or not set(value) <= set(names):
            raise expected(f"a mapping with some of {', '.join(names)}", value)
        return kind(
            **{
                name: (_READERS["timeout"] if name in _DURATION_FIELDS else _whole_number)(item)
                for name, item in value.items()
            }
        )

    return read


def _priority(value: Any) -> Priority:
    return value if isinstance(value, Priority) else _READERS["priority"](value)


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_whole_number = integer_reader(0)
_READERS: dict[str, Callable[[Any], Any]] = {
    attribute_of(name): field.read for name, field in FIELDS.items()
}
_OPTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: _READERS[name] for name in ("name", "queue", "timeout", "retry_on_timeout")},
    **{name: _READERS[name] for name in ("isolation", "requires_review", "description")},
    "priority": _priority,
    "max_attempts": _whole_number,
    "retry": _policy(RetryPolicy),
    "resources": _policy(ResourceLimits),
}
