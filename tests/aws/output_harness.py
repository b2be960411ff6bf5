"""A table for output, processes that use it, and a network that can be made to fail."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from itertools import count
from typing import Any

from longshore.adapters.aws.client import AwsClient, AwsClientOptions, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.errors import BackendUnavailable
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition, Stream
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START as NOON
from tests.aws.stand_in import stand_in
from tests.aws.table_schemas import table_schemas

FaultHook = Callable[[int, str], Exception | None]


class FaultyOutputAws(AwsClient):
    """A client that records every call and injects network faults into some."""

    def __init__(self, options: AwsClientOptions) -> None:
        super().__init__(options)
        self.undelivered: list[Coroutine[Any, Any, AwsResponse]] = []  # sent, and not there yet
        self.reset()

    def reset(self) -> None:
        """Forget all calls, faults and undelivered requests."""
        self.calls: list[str] = []
        self.parameters: list[dict[str, Any]] = []
        self.before: FaultHook = lambda number, operation: None
        self.after: FaultHook = lambda number, operation: None
        self.edit_response: Callable[[int, AwsResponse], None] = lambda number, answer: None
        # What another process does right before the call of this number.
        self.concurrent_call: tuple[int, Callable[[], Awaitable[object]]] | None = None
        for call in self.undelivered:
            call.close()
        self.undelivered.clear()

    async def call(self, service: str, operation: str, **parameters: Any) -> AwsResponse:
        self.calls.append(operation)
        self.parameters.append(parameters)
        number = len(self.calls)
        if self.concurrent_call is not None and self.concurrent_call[0] == number:
            (_, other), self.concurrent_call = self.concurrent_call, None
            await other()
        if error := self.before(number, operation):
            self.undelivered.append(super().call(service, operation, **parameters))
            raise error
        try:
            answer = await super().call(service, operation, **parameters)
        except CallRefused as refused:
            raise self.after(number, operation) or refused from None
        self.edit_response(number, answer)
        if error := self.after(number, operation):
            raise error
        return answer

    async def deliver(self) -> None:
        """Deliver late the calls that were sent and got no response."""
        for call in self.undelivered:
            await asyncio.gather(call, return_exceptions=True)
        self.undelivered.clear()


class _OutputAlone(DynamoOutputLog):
    """An output log whose tasks have no jobs. The contract of retention is about those."""

    async def _is_removed(self, task_id: str) -> bool:
        return False


class OutputHarness:
    """A table, and processes that use it in one event loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._tasks = count(1)
        self.aws = FaultyOutputAws(stand_in().client_options)
        self.names = Names(stage=stand_in().new_stage(), bucket="none")
        self.clock = FakeClock(NOON)

    async def make_table(self) -> None:
        (table,) = [
            schema
            for schema in table_schemas(self.names)
            if schema["TableName"] == self.names.output
        ]
        await self.aws.call("dynamodb", "create_table", **table)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def timed() -> None:
            async with asyncio.timeout(100):
                await scenario

        self.aws.reset()
        try:
            self._runner.run(timed())
        finally:
            self.aws.reset()

    def open_log(self) -> DynamoOutputLog:
        return _OutputAlone(self.aws, self.names, self.clock)

    def new_task(self) -> str:
        return f"job-{next(self._tasks)}_a"

    async def items(self, task: str) -> list[dict[str, Any]]:
        result = await self.aws.call(
            "dynamodb",
            "query",
            TableName=self.names.output,
            KeyConditionExpression="task = :task",
            ExpressionAttributeValues={":task": {"S": task}},
        )
        items: list[dict[str, Any]] = result["Items"]
        return items


def open_harness() -> Iterator[OutputHarness]:
    """What a fixture of a module yields."""
    with asyncio.Runner() as runner:
        installation = OutputHarness(runner)
        try:
            installation.run(installation.make_table())
            yield installation
        finally:
            runner.run(installation.aws.close())


def run_in_harness(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(scenario)
    def test(harness: OutputHarness, **parameters: Any) -> None:
        harness.run(scenario(harness=harness, **parameters))

    return test


def entry(sequence: int, data: bytes = b"hello\n", *, attempt: int = 1, **more: Any) -> OutputChunk:
    fields = {"at": NOON, "stream": Stream.STDOUT, **more}
    return OutputChunk(attempt=attempt, sequence=sequence, data=data, **fields)


def lost_marker(first: int, last: int, *, attempt: int = 1) -> OutputChunk:
    return entry(first, b"", attempt=attempt, stream=Stream.LOST, last=last)


def entries(*sequences: int, data: bytes = b"hello\n") -> list[OutputChunk]:
    return [entry(sequence, data) for sequence in sequences]


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


async def read_pages(log: DynamoOutputLog, task: str, sizes: Iterator[int]) -> list[OutputChunk]:
    result: list[OutputChunk] = []
    position = OUTPUT_START
    while page := await log.read(task, after=position, limit=next(sizes)):
        result += page
        position = OutputPosition(page[-1].attempt, page[-1].sequence)
    return result


async def append_with_retry(log: DynamoOutputLog, task: str, batch: list[OutputChunk]) -> None:
    for _ in range(50):
        try:
            return await log.append(task, batch)
        except BackendUnavailable:
            pass
    raise AssertionError
