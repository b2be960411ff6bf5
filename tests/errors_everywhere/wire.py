"""The wire between services and ports: hears each call, and lets one of them go wrong."""

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any

from longshore.core.budgets import Account
from longshore.ports.backend import Backend
from tests.errors_everywhere.kinds import Kind
from tests.errors_everywhere.sites import PORTS, Site, Way, methods_of, way_of

_OF_BACKEND = (
    *("ledger", "queue", "queues", "events", "bus", "output", "blobs", "definitions", "keys"),
    "accounts",
)
Happening = Callable[..., Awaitable[object]]


@dataclass(slots=True)
class Call:
    """A call of a port by a service."""

    site: Site
    way: Way
    begun: bool = False  # whoever made it was still there when it was to be carried out
    answered: bool = False  # and when the answer came, and it did not break


@dataclass(frozen=True, slots=True)
class Trouble:
    """Which call goes wrong, and how.

    It is the first from a site; or from a site by one way; or the n-th of these.
    """

    kind: Kind
    site: Site
    way: Way | None = None
    number: int = 1

    def __str__(self) -> str:
        way = "" if self.way is None else f" by {' > '.join(self.way)}"
        number = "" if self.number == 1 else f", call {self.number}"
        return f"{self.kind} at {self.site}{way}{number}"


class Wire:
    """What all ports of a run share."""

    def __init__(self, trouble: Trouble | None) -> None:
        self.calls: list[Call] = []
        self.raised: Exception | None = None
        # What happens just before a method is carried out; it may be that it cannot be.
        self.first: dict[str, Happening] = {}
        # What others do just after a method was carried out and before its answer is there.
        self.meanwhile: dict[str, Happening] = {}
        self.trouble = trouble
        self._left = trouble.number if trouble else 0

    def before(self, backend: Backend) -> Backend:
        """The backend with this wire before its ports."""
        ports: dict[str, Any] = {
            name: Wired(self, name, getattr(backend, name)) for name in _OF_BACKEND
        }
        return replace(backend, **ports)

    def made(self, method: str) -> tuple[Trouble | None, Call | None]:
        """Note a call, made two frames up; what is to happen to it, and the note."""
        wanted = self.trouble
        if wanted is not None and (self.raised or wanted.site.method != method):
            return None, None
        found = way_of(sys._getframe(2), method)
        if found is None:
            return None, None
        site, way = found
        call = Call(site, way)
        self.calls.append(call)
        if wanted is None or site != wanted.site or wanted.way not in (None, way):
            return None, call
        self._left -= 1
        return None if self._left else wanted, call

    def fail(self, trouble: Trouble) -> None:
        """Now."""
        self.raised = trouble.kind.error()
        raise self.raised


def _carried_out_first(kind: Kind, arguments: tuple[Any, ...]) -> bool:
    # A row that was to be created is in conflict only if it is there: somebody else created it.
    return kind.done or (kind.name == "VersionConflict" and any(map(_creates, arguments)))


def _creates(change: Any) -> bool:
    return change.version == 1 if isinstance(change, Account) else not change.expected_version


class Wired:
    """Stands before a port and hands on everything, but for the trouble that there is to be."""

    def __init__(self, wire: Wire, name: str, port: Any) -> None:
        self._wire = wire
        self._name = name
        self._port = port
        self._methods = methods_of(name)
        assert name in PORTS

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if name not in self._methods:
            return found
        method = f"{self._name}.{name}"
        if iscoroutinefunction(found):
            wired = self._wired(method, found)
        elif isasyncgenfunction(found):
            wired = self._wired_stream(method, found)
        else:
            wired = self._wired_at_once(method, found)
        setattr(self, name, wired)
        return wired

    def _wired(self, method: str, found: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        wire = self._wire

        def call(*arguments: Any, **named: Any) -> Awaitable[Any]:
            return carried_out(*wire.made(method), arguments, named)

        async def carried_out(
            trouble: Trouble | None, call: Call | None, arguments: Any, named: Any
        ) -> Any:
            await asyncio.sleep(0)
            if call:
                call.begun = True
            if trouble and not _carried_out_first(trouble.kind, arguments):
                wire.fail(trouble)
            if happening := wire.first.get(method):
                await happening(*arguments)
            answer = await found(*arguments, **named)
            if happening := wire.meanwhile.get(method):
                await happening(*arguments)
            else:
                await asyncio.sleep(0)
            if call:
                call.answered = True
            if trouble:
                wire.fail(trouble)
            return Wired(wire, "child", answer) if method == "runner.start" else answer

        return call

    def _wired_stream(
        self, method: str, found: Callable[..., AsyncIterator[Any]]
    ) -> Callable[..., AsyncIterator[Any]]:
        wire = self._wire

        def call(*arguments: Any, **named: Any) -> AsyncIterator[Any]:
            trouble, made = wire.made(method)
            if made:
                made.begun = True
            return carried_out(trouble, arguments, named)

        async def carried_out(
            trouble: Trouble | None, arguments: Any, named: Any
        ) -> AsyncIterator[Any]:
            async for item in found(*arguments, **named):
                yield item
                if trouble:
                    break  # in the middle: what was said before has been heard
            if trouble:
                wire.fail(trouble)

        return call

    def _wired_at_once(self, method: str, found: Callable[..., Any]) -> Callable[..., Any]:
        wire = self._wire

        def call(*arguments: Any, **named: Any) -> Any:
            trouble, made = wire.made(method)
            if made:
                made.begun = True
            if trouble:
                wire.fail(trouble)
            return found(*arguments, **named)

        return call
