"""Calls to AWS that fail when a test injects a fault."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import PortContract
from tests.aws.backends import AwsContract, on_aws

Call = Callable[..., Awaitable[AwsResponse]]
CallFault = Callable[[Call], Awaitable[AwsResponse]]


class FaultyAws(AwsClient):
    """A client that injects faults into the next calls of some operations."""

    def __init__(self, aws: AwsClient) -> None:
        self._aws = aws
        self._faults: dict[str, list[CallFault]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def inject(self, operation: str, *faults: CallFault) -> None:
        self._faults.setdefault(operation, []).extend(faults)

    def count(self, operation: str) -> int:
        return [name for name, _ in self.calls].count(operation)

    async def client(self, service: str) -> Any:
        return await self._aws.client(service)

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        self.calls.append((operation, parameters))

        async def call(**others: Any) -> AwsResponse:
            return await self._aws.call(service, operation, **parameters | others)

        pending = self._faults.get(operation)
        return await (pending.pop(0)(call) if pending else call())


async def response_lost(call: Call) -> AwsResponse:
    """The call succeeds or is refused, but its response is lost."""
    with suppress(CallRefused):
        await call()
    raise OutcomeUnknown("the answer was lost")


async def request_lost(call: Call) -> AwsResponse:
    """The request is lost, so the call has no effect."""
    raise OutcomeUnknown("the call was lost")


async def throttled(call: Call) -> AwsResponse:
    raise BackendUnavailable("throttled")


def response_lost_then(action: Callable[[], Awaitable[Any]]) -> CallFault:
    """The response is lost, and the action runs before the call is repeated."""

    async def fault(call: Call) -> AwsResponse:
        await call()
        await action()
        raise OutcomeUnknown("the answer was lost")

    return fault


def after_action(action: Callable[[], Awaitable[Any]]) -> CallFault:
    """The action runs before the call."""

    async def fault(call: Call) -> AwsResponse:
        await action()
        return await call()

    return fault


def with_parameters(**parameters: Any) -> CallFault:
    """The call has other parameters: a small page instead of a megabyte."""

    async def fault(call: Call) -> AwsResponse:
        return await call(**parameters)

    return fault


def transaction_cancelled(*reasons: str) -> CallFault:
    """What DynamoDB says when it does not carry out a transaction; the stand-in never has a reason
    besides a condition, because it takes one request after the other."""

    async def fault(call: Call) -> AwsResponse:
        answer = {"CancellationReasons": [{"Code": reason} for reason in reasons]}
        raise CallRefused("TransactionCanceledException", answer)

    return fault


class FaultyPortContract(AwsContract, PortContract):
    """A suite on backends of which the calls of one port can fail."""

    def port(self, aws: AwsClient, names: Names) -> dict[str, Any]:
        """The port's name, and the port itself."""
        raise NotImplementedError

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        def take(aws: AwsClient, names: Names) -> None:
            self.faulty_aws = FaultyAws(aws)
            ports.update(self.port(self.faulty_aws, names))

        ports: dict[str, Any] = {}
        async with on_aws(tmp_path, clock, on_open=take) as backend:
            yield replace(backend, **ports)
