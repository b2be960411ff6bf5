"""The proxies between services and ports: they record each call, and make one of them fail."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any

from longshore.core.budgets import SharedBudget
from longshore.ports.backend import Backend
from tests.errors_everywhere.kinds import ErrorKind
from tests.errors_everywhere.sites import PORTS, CallPath, Site, call_path_of, methods_of

_BACKEND_PORTS = (
    *(
        "ledger",
        "queue",
        "queue_controls",
        "events",
        "bus",
        "output",
        "blobs",
        "definitions",
        "keys",
    ),
    "budgets",
)
Hook = Callable[..., Awaitable[object]]


@dataclass(slots=True)
class Call:
    """A call of a port by a service."""

    site: Site
    path: CallPath
    started: bool = False  # the caller was still there when the call was to be carried out
    answered: bool = False  # and when the answer came, and it did not break


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Which call goes wrong, and how.

    It is the first from a site; or from a site by one way; or the n-th of these.
    """

    kind: ErrorKind
    site: Site
    path: CallPath | None = None
    number: int = 1

    def __str__(self) -> str:
        way = "" if self.path is None else f" by {' > '.join(self.path)}"
        number = "" if self.number == 1 else f", call {self.number}"
        return f"{self.kind} at {self.site}{way}{number}"


class FaultInjector:
    """What all ports of a run share."""

    def __init__(self, fault: InjectedFault | None) -> None:
        self.calls: list[Call] = []
        self.raised: Exception | None = None
        # What happens just before a method is carried out; it may be that it cannot be.
        self.before_call: dict[str, Hook] = {}
        # What others do just after a method was carried out and before its answer is there.
        self.after_call: dict[str, Hook] = {}
        self.fault = fault
        self._calls_left = fault.number if fault else 0

    def wrap(self, backend: Backend) -> Backend:
        """The backend with this wire before its ports."""
        ports: dict[str, Any] = {
            name: PortProxy(self, name, getattr(backend, name)) for name in _BACKEND_PORTS
        }
        return replace(backend, **ports)

    def record_call(self, method: str) -> tuple[InjectedFault | None, Call | None]:
        """Note a call, made two frames up; what is to happen to it, and the note."""
        options = self.fault
        if options is not None and (self.raised or options.site.method != method):
            return None, None
        result = call_path_of(sys._getframe(2), method)
        if result is None:
            return None, None
        site, way = result
        call = Call(site, way)
        self.calls.append(call)
        if options is None or site != options.site or options.path not in (None, way):
            return None, call
        self._calls_left -= 1
        return None if self._calls_left else options, call

    def fail(self, fault: InjectedFault) -> None:
        """Now."""
        self.raised = fault.kind.error()
        raise self.raised


def _applies_first(kind: ErrorKind, arguments: tuple[Any, ...]) -> bool:
    # A row that was to be created is in conflict only if it is there: another caller created it.
    return kind.applied or (kind.name == "VersionConflict" and any(map(_creates, arguments)))


def _creates(change: Any) -> bool:
    return change.version == 1 if isinstance(change, SharedBudget) else not change.expected_version


class PortProxy:
    """Forwards every call to a port, except the one that fails by the injected fault."""

    def __init__(self, injector: FaultInjector, name: str, port: Any) -> None:
        self._injector = injector
        self._name = name
        self._port = port
        self._methods = methods_of(name)
        assert name in PORTS

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._port, name)
        if name not in self._methods:
            return result
        method = f"{self._name}.{name}"
        if iscoroutinefunction(result):
            wired = self._wrap(method, result)
        elif isasyncgenfunction(result):
            wired = self._wrap_stream(method, result)
        else:
            wired = self._wrap_sync(method, result)
        setattr(self, name, wired)
        return wired

    def _wrap(self, method: str, function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        injector = self._injector

        def call(*arguments: Any, **named: Any) -> Awaitable[Any]:
            return carried_out(*injector.record_call(method), arguments, named)

        async def carried_out(
            fault: InjectedFault | None, call: Call | None, arguments: Any, named: Any
        ) -> Any:
            await asyncio.sleep(0)
            if call:
                call.started = True
            if fault and not _applies_first(fault.kind, arguments):
                injector.fail(fault)
            if hook := injector.before_call.get(method):
                await hook(*arguments)
            answer = await function(*arguments, **named)
            if hook := injector.after_call.get(method):
                await hook(*arguments)
            else:
                await asyncio.sleep(0)
            if call:
                call.answered = True
            if fault:
                injector.fail(fault)
            return PortProxy(injector, "child", answer) if method == "runner.start" else answer

        return call

    def _wrap_stream(
        self, method: str, function: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        injector = self._injector

        def call(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
            fault, created = injector.record_call(method)
            if created:
                created.started = True
            return carried_out(fault, arguments, named)

        async def carried_out(
            fault: InjectedFault | None, arguments: Any, named: Any
        ) -> AsyncIterator[Any]:
            async for item in function(*arguments, **named):
                yield item
                if fault:
                    break  # in the middle: earlier items have been received
            if fault:
                injector.fail(fault)

        return call

    def _wrap_sync(self, method: str, function: Callable[..., Any]) -> Callable[..., Any]:
        injector = self._injector

        def call(*arguments: Any, **named: Any) -> Any:
            fault, created = injector.record_call(method)
            if created:
                created.started = True
            if fault:
                injector.fail(fault)
            return function(*arguments, **named)

        return call
