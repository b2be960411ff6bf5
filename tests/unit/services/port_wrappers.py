"""Ports with something in between: other processes that act at the worst moment, a crash, a record.

Each hands on everything to the port behind it.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from inspect import iscoroutinefunction
from typing import Any

from longshore.ports.backend import Backend

PORTS = (
    *("ledger", "queue", "events", "bus", "output", "blobs", "definitions", "budgets", "source"),
)
Action = Callable[[], Awaitable[object]]


class InterposedPort:
    """Something happens before or after the n-th call of a method, as if others had done it."""

    def __init__(
        self,
        port: Any,
        method: str,
        *,
        before: Action | None = None,
        after: Action | None = None,
        at: int = 1,
    ) -> None:
        self._port = port
        self._method = method
        self._before = before
        self._after = after
        self._at = at
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._port, name)
        return self._wrap(result) if name == self._method else result

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self.calls += 1
            now = self.calls == self._at
            if now and self._before is not None:
                await self._before()
            answer = await method(*arguments, **named)
            if now and self._after is not None:
                await self._after()
            return answer

        return call


class ObservedPort:
    """Calls a function before and after each call of a port."""

    def __init__(self, port: Any, name: str, before: Callable[[str], None], after: Any) -> None:
        self._port = port
        self._name = name
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._port, name)
        return self._wrap(f"{self._name}.{name}", result) if iscoroutinefunction(result) else result

    def _wrap(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*arguments: Any, **named: Any) -> Any:
            self._before(name)
            answer = await method(*arguments, **named)
            self._after(name)
            return answer

        return call


def _nothing(_: str) -> None:
    pass


def record_calls(backend: Backend) -> tuple[Backend, list[str]]:
    """The backend, and the names of all calls that were made of it, such as "ledger.commit"."""
    calls: list[str] = []
    return _observe(backend, calls.append, _nothing), calls


class Crash(BaseException):
    """The process ends here; no handler catches it, and none of its calls is made any more."""


def crash_at(
    backend: Backend, at: int, *, after_call: bool, crashes: list[str] | None = None
) -> Backend:
    """The backend of a process that dies just before or just after its n-th call.

    Args:
        crashes: Gets the name of the call, so that a test can see whether it came to that.
    """
    calls = 0
    died_at = [] if crashes is None else crashes

    def die(name: str) -> None:
        died_at.append(name)
        raise Crash

    def before(name: str) -> None:
        nonlocal calls
        calls += 1
        if died_at or (calls == at and not after_call):
            die(name)

    def after(name: str) -> None:
        if calls >= at:
            die(name)

    return _observe(backend, before, after)


def _observe(
    backend: Backend, before: Callable[[str], None], after: Callable[[str], None]
) -> Backend:
    ports = {
        name: ObservedPort(getattr(backend, name), name, before, after)
        for name in PORTS
        if getattr(backend, name) is not None
    }
    return replace(backend, **ports)
