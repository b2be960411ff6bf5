"""A table for output, processes that use it, and a network that can be told to fail."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from itertools import count
from typing import Any

from longshore.adapters.aws.calls import Answer, Aws, AwsPlace
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output import DynamoOutputLog
from longshore.adapters.aws.shapes import table_shapes
from longshore.errors import BackendUnavailable
from longshore.ports.output import START, OutputEntry, Place, Stream
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START as NOON
from tests.aws.standin import stand_in

Trouble = Callable[[int, str], Exception | None]


class TroubledAws(Aws):
    """Notes every call, and does to some of them what networks do."""

    def __init__(self, place: AwsPlace) -> None:
        super().__init__(place)
        self.held: list[Coroutine[Any, Any, Answer]] = []  # sent, and not there yet
        self.reset()

    def reset(self) -> None:
        """Nothing was called and nothing fails; what is on its way never arrives."""
        self.calls: list[str] = []
        self.parameters: list[dict[str, Any]] = []
        self.before: Trouble = lambda number, operation: None
        self.after: Trouble = lambda number, operation: None
        self.edit: Callable[[int, Answer], None] = lambda number, answer: None
        # What somebody else does right before the call of this number.
        self.meanwhile: tuple[int, Callable[[], Awaitable[object]]] | None = None
        for each in self.held:
            each.close()
        self.held.clear()

    async def call(self, service: str, operation: str, **parameters: Any) -> Answer:
        self.calls.append(operation)
        self.parameters.append(parameters)
        number = len(self.calls)
        if self.meanwhile is not None and self.meanwhile[0] == number:
            (_, other), self.meanwhile = self.meanwhile, None
            await other()
        if error := self.before(number, operation):
            self.held.append(super().call(service, operation, **parameters))
            raise error
        answer = await super().call(service, operation, **parameters)
        self.edit(number, answer)
        if error := self.after(number, operation):
            raise error
        return answer

    async def deliver(self) -> None:
        """What was sent and never heard of again arrives after all."""
        for each in self.held:
            await asyncio.gather(each, return_exceptions=True)
        self.held.clear()


class House:
    """A table, and processes that use it in one event loop."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._tasks = count(1)
        self.aws = TroubledAws(stand_in().place)
        self.names = Names(stage=stand_in().new_stage(), bucket="none")
        self.clock = FakeClock(NOON)

    async def make_table(self) -> None:
        (shape,) = [
            each for each in table_shapes(self.names) if each["TableName"] == self.names.output
        ]
        await self.aws.call("dynamodb", "create_table", **shape)

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def timed() -> None:
            async with asyncio.timeout(100):
                await scenario

        self.aws.reset()
        try:
            self._runner.run(timed())
        finally:
            self.aws.reset()

    def process(self, **options: Any) -> DynamoOutputLog:
        return DynamoOutputLog(self.aws, self.names, self.clock, **options)

    def new_task(self) -> str:
        return f"job-{next(self._tasks)}_a"

    async def items(self, task: str) -> list[dict[str, Any]]:
        found = await self.aws.call(
            "dynamodb",
            "query",
            TableName=self.names.output,
            KeyConditionExpression="task = :task",
            ExpressionAttributeValues={":task": {"S": task}},
        )
        items: list[dict[str, Any]] = found["Items"]
        return items


def open_house() -> Iterator[House]:
    """What a fixture of a module yields."""
    with asyncio.Runner() as runner:
        house = House(runner)
        try:
            house.run(house.make_table())
            yield house
        finally:
            runner.run(house.aws.close())


def played(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(scenario)
    def test(house: House, **given: Any) -> None:
        house.run(scenario(house=house, **given))

    return test


def entry(sequence: int, data: bytes = b"hello\n", *, attempt: int = 1, **more: Any) -> OutputEntry:
    fields = {"at": NOON, "stream": Stream.STDOUT, **more}
    return OutputEntry(attempt=attempt, sequence=sequence, data=data, **fields)


def lost(first: int, last: int, *, attempt: int = 1) -> OutputEntry:
    return entry(first, b"", attempt=attempt, stream=Stream.LOST, last=last)


def entries(*sequences: int, data: bytes = b"hello\n") -> list[OutputEntry]:
    return [entry(sequence, data) for sequence in sequences]


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


async def paged(log: DynamoOutputLog, task: str, sizes: Iterator[int]) -> list[OutputEntry]:
    found: list[OutputEntry] = []
    place = START
    while page := await log.read(task, after=place, limit=next(sizes)):
        found += page
        place = Place(page[-1].attempt, page[-1].sequence)
    return found


async def persistently(log: DynamoOutputLog, task: str, batch: list[OutputEntry]) -> None:
    for _ in range(50):
        try:
            return await log.append(task, batch)
        except BackendUnavailable:
            pass
    raise AssertionError
