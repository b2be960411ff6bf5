"""Calls to AWS that go wrong when a test wants it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from longshore.adapters.aws.calls import Answer, Aws, Refused
from longshore.adapters.aws.names import Names
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import PortContract
from tests.aws.backends import OnAws, on_aws

Call = Callable[..., Awaitable[Answer]]
Mishap = Callable[[Call], Awaitable[Answer]]


class Trouble(Aws):
    """AWS as it is, but for the next calls of some operations, each of which meets a mishap."""

    def __init__(self, aws: Aws) -> None:
        self._aws = aws
        self._mishaps: dict[str, list[Mishap]] = {}
        self.made: list[tuple[str, dict[str, Any]]] = []

    def meet(self, operation: str, *mishaps: Mishap) -> None:
        self._mishaps.setdefault(operation, []).extend(mishaps)

    def count(self, operation: str) -> int:
        return [name for name, _ in self.made].count(operation)

    async def client(self, service: str) -> Any:
        return await self._aws.client(service)

    async def call(self, service: str, operation: str, **parameters: Any) -> Answer:
        self.made.append((operation, parameters))

        async def call(**others: Any) -> Answer:
            return await self._aws.call(service, operation, **parameters | others)

        waiting = self._mishaps.get(operation)
        return await (waiting.pop(0)(call) if waiting else call())


async def lost(call: Call) -> Answer:
    """It happens, or is refused, and nobody hears of it."""
    with suppress(Refused):
        await call()
    raise OutcomeUnknown("the answer was lost")


async def never_arrived(call: Call) -> Answer:
    """It does not happen, and nobody hears of that."""
    raise OutcomeUnknown("the call was lost")


async def throttled(call: Call) -> Answer:
    raise BackendUnavailable("throttled")


def lost_and_then(deed: Callable[[], Awaitable[Any]]) -> Mishap:
    """Its answer is lost, and somebody does something before it is made again."""

    async def mishap(call: Call) -> Answer:
        await call()
        await deed()
        raise OutcomeUnknown("the answer was lost")

    return mishap


def after(deed: Callable[[], Awaitable[Any]]) -> Mishap:
    """Somebody is faster."""

    async def mishap(call: Call) -> Answer:
        await deed()
        return await call()

    return mishap


def asked_for(**parameters: Any) -> Mishap:
    """As if it had been asked so: a small page instead of a megabyte."""

    async def mishap(call: Call) -> Answer:
        return await call(**parameters)

    return mishap


def cancelled_for(*reasons: str) -> Mishap:
    """What DynamoDB says when it does not carry out a transaction; the stand-in never has a reason
    besides a condition, because it takes one request after the other."""

    async def mishap(call: Call) -> Answer:
        answer = {"CancellationReasons": [{"Code": reason} for reason in reasons]}
        raise Refused("TransactionCanceledException", answer)

    return mishap


class InTrouble(OnAws, PortContract):
    """A suite on backends of which one port meets trouble."""

    def port(self, aws: Aws, names: Names) -> dict[str, Any]:
        """The port's name, and the port itself."""
        raise NotImplementedError

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        def take(aws: Aws, names: Names, _: FakeClock) -> Callable[[], Awaitable[None]]:
            taken.append((Trouble(aws), names))
            return aws.close

        taken: list[tuple[Trouble, Names]] = []
        async with on_aws(tmp_path, clock, close=take) as backend:
            self.trouble, names = taken[0]
            yield replace(backend, **self.port(self.trouble, names))
