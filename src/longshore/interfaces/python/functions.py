"""``@longshore.task``: a function that can be run here, or described and run by a worker.

Calling the decorated function calls the function, so it can be tested and used like any other. What
a worker is to run is built by ``of``: ``count.of(fetch.of(url))`` runs nothing; it is two calls, of
which the second gets the result of the first.

Nothing heavy is imported until a call is built or run: whoever forks children wants them small.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from longshore.core.definitions.definition import Definition, ResourceLimits
from longshore.core.tasks.backoff import RetryPolicy
from longshore.errors import UsageError
from longshore.interfaces.python.calls import Call
from longshore.interfaces.python.import_paths import ImportPath, import_path_of
from longshore.interfaces.python.options import UNNAMED_DEFINITION, definition_of

if TYPE_CHECKING:
    from longshore.interfaces.python.signatures import FunctionSignature

P = ParamSpec("P")
ReturnT = TypeVar("ReturnT")
ResultT = TypeVar("ResultT")

_MAX_NAME_LENGTH = 64
_HASH_LENGTH = 8
_INVALID_NAME_CHARACTERS = re.compile(r"[^A-Za-z0-9_-]")


class TaskFunction(Generic[P, ReturnT, ResultT]):
    """A function that workers can run; see ``task``."""

    __name__: str
    __qualname__: str

    def __init__(self, function: Callable[P, ReturnT], definition: Definition) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._definition = definition

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> ReturnT:
        """Call the function, here and now."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, Call):
                name = self.__name__
                message = (
                    f"{name}(...) runs the function now, and {value!r} has no result yet;"
                    f" {name}.of(...) makes a task of it"
                )
                raise UsageError(message)
        return self._function(*args, **kwargs)

    # What stands for a parameter may be its value or the call that will give it, which no type can
    # say of every parameter; the arguments are checked when this is called.
    def of(self, *args: Any, **kwargs: Any) -> Call[ResultT]:
        """A task: this function with these arguments, which may be, or contain, other calls.

        Raises:
            InvalidInput: the arguments do not fit the function.
        """
        from longshore.interfaces.python.signatures import calls_in

        arguments = self._signature.dump_arguments(args, kwargs)
        return Call(self, arguments, tuple(dict.fromkeys(calls_in(arguments))))

    @functools.cached_property
    def name(self) -> str:
        """What its definition is called."""
        given = self._definition.name
        return _definition_name(*self._import_parts()) if given == UNNAMED_DEFINITION else given

    def definition(self, *, in_process: bool = False) -> Definition:
        """What is stored of it when a job that has it is submitted.

        Args:
            in_process: It is for this process alone, where the function is at hand.

        Raises:
            UsageError: no worker could find the function; the message says what to do.
        """
        module, name = self.__module__, self.__qualname__
        place = ImportPath(module, name) if in_process else import_path_of(self, module, name)
        options: dict[str, Any] = {"function": place.path, "typed": True}
        if place.source_dir is not None:
            options["path"] = [place.source_dir]
        return replace(self._definition, name=self.name, options=options)

    def _import_parts(self) -> tuple[str, str]:
        try:
            place = import_path_of(self, self.__module__, self.__qualname__)
        except UsageError:
            # It may never be submitted, only run in a test; whoever submits it is told.
            return self.__module__, self.__qualname__
        return place.module, place.name

    @functools.cached_property
    def _signature(self) -> FunctionSignature:
        from longshore.interfaces.python.signatures import FunctionSignature

        return FunctionSignature(self._function, self.__name__)

    def prebuild(self) -> None:
        """Build now what the first call would build: for a process that will fork many."""
        _ = self._signature

    def run_with(
        self, kwargs: Mapping[str, Any], *, replacement: Callable[..., Any] | None = None
    ) -> Any:
        """Check arguments that came as JSON, run the function to its end, give the result as JSON.

        Args:
            replacement: What to call in place of the function, in a test.

        Raises:
            InvalidInput: the arguments do not fit the function.
            TypeError: the result is not what the function promises.
        """
        given = self._signature.load_arguments(kwargs)
        result: Any = (replacement or self._function)(*given.args, **given.kwargs)
        if inspect.isawaitable(result):
            result = _run_awaitable(result)
        return self._signature.dump_result(result)

    def load_result(self, value: Any) -> ResultT:
        """A result that was kept as JSON, as the function gave it."""
        found: ResultT = self._signature.load_result(value)
        return found

    def __repr__(self) -> str:
        return f"<task {self.__module__}:{self.__qualname__}>"


def _run_awaitable(awaitable: Any) -> Any:
    import asyncio

    async def waited() -> Any:
        return await awaitable

    return asyncio.run(waited())


def _definition_name(module: str, name: str) -> str:
    """A definition's name that no other function has: from the module too, as two may have one."""
    whole = _INVALID_NAME_CHARACTERS.sub("-", f"{module}.{name}")
    if len(whole) <= _MAX_NAME_LENGTH:
        return whole
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
        name: What its definition is called; else made from its module and name.
        queue: The queue that its tasks go to.
        priority: ``high``, ``normal`` or ``low``.
        timeout: For each attempt, like ``90s``, a timedelta, or seconds; else the worker's.
        max_attempts: How often it is tried, the first time included.
        retry: ``{"max_attempts": 5, "base": "1s", "cap": "1m"}`` or a ``RetryPolicy``; else the
            installation's.
        retry_on_timeout: Whether an attempt whose time was up is tried again.
        isolation: ``fork``, ``pool`` or ``spawn``.
        resources: ``{"memory_bytes": …, "cpu": "1m", "open_files": …, "file_bytes": …}``.
        requires_review: Whether a result waits for somebody's approval.
        description: For people; else the first line of the docstring.

    Raises:
        UsageError: it is not a function, or an option cannot be meant.
    """
    if function is None:
        return lambda given: _make_task(given, options)
    return _make_task(function, options)


def _make_task(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> TaskFunction[..., Any, Any]:
    shown = getattr(function, "__qualname__", repr(function))
    if not inspect.isfunction(function):
        message = f"{shown} cannot be a task: only a function made by `def` can"
        raise UsageError(message)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        message = f"{shown} cannot be a task: it yields, and a task gives one result; return a list"
        raise UsageError(message)
    return TaskFunction(function, definition_of(function, options))


class _TaskDecorator:
    """What ``task`` with options gives; only for the type checker."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, ResultT]], /
    ) -> TaskFunction[P, Coroutine[Any, Any, ResultT], ResultT]: ...
    @overload
    def __call__(self, function: Callable[P, ResultT], /) -> TaskFunction[P, ResultT, ResultT]: ...
    def __call__(self, function: Any, /) -> Any:
        """The function as a task."""
