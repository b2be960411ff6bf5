"""Where stories of troubled calls are told.

The functions are here as mappings run them: what the ledger's stream holds is relayed, what the bus
brings is saved and dispatched, and what failed is handed over again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from longshore.adapters.aws import records
from longshore.adapters.aws.backend import aws_backend
from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.names import Names
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.states import JobState, TaskState
from longshore.errors import BackendUnavailable
from longshore.services.relay import Relay
from longshore.testing.auditing import from_dynamo
from longshore.testing.auditing.audit import Violation, audit
from longshore.testing.clock import FakeClock
from tests.aws.backends import names_in
from tests.aws.evidence import place_in
from tests.aws.standin import stand_in
from tests.aws.wire_trouble import TroubledAws
from tests.unit.services.stage import NO_WAIT, Stage, job_id, task_id

T = TypeVar("T")

QUEUES = ("default",)
CONSUMERS = ("dispatcher", "history")
MOMENT = timedelta(milliseconds=100)
A_WHILE = timedelta(seconds=25)
_ROUNDS = 400
_QUIET_ROUNDS = 100
CLIENT_TRIES = 40  # more than storms last, at all sites that one call comes by


class Unfinished(AssertionError):
    """A job did not come to its end, although nothing goes wrong any more."""


class Theatre:
    """One story: its processes, and what brings events from one to the other."""

    def __init__(
        self, stage: Stage, aws: TroubledAws, calm: Aws, names: Names, folder: Path, name: str
    ) -> None:
        self.stage = stage
        self.name = name
        self.jobs: list[str] = []
        self.aws = aws
        self.calm = calm  # as AWS's own parts ask each other
        self.names = names
        self._place = place_in(folder)
        self._iterators: dict[str, str] = {}
        self._pending: list[dict[str, Any]] = []
        self._relay = Relay(
            bus=stage.backend.bus,
            place_of=records.place_of,
            told_by=records.told_by,
            aside=_nowhere,
        )

    # What people do -----------------------------------------------------------------------------

    def request(self, name: str = "") -> str:
        return f"{self.name}{name}"

    async def asks(self, call: Callable[[], Awaitable[T]], tries: int = CLIENT_TRIES) -> T:
        """What somebody is answered who asks the same again when there is no answer."""
        for _ in range(tries - 1):
            with suppress(BackendUnavailable):
                return await self.in_time(call)
        return await self.in_time(call)

    async def in_time(self, call: Callable[[], Awaitable[T]]) -> T:
        doing: asyncio.Future[T] = asyncio.ensure_future(call())
        await self.stage.passes(NO_WAIT)
        while not doing.done():
            await self.stage.passes(MOMENT)
        return await doing

    async def submits(self, *tasks: dict[str, Any], request: str = "") -> str:
        name = self.request(request)
        self.jobs.append(job_id(name))
        await self.asks(lambda: self.stage.submit(*tasks, request_id=name))
        return job_id(name)

    # What goes on -------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Events from now on."""
        shards = await _shards(self.calm, self._place.ledger)
        self._iterators.update(shards)

    async def goes_on(self, done: Callable[[], Awaitable[bool]]) -> None:
        """Everything goes on until something is so."""
        for number in range(_ROUNDS):
            await self.stage.passes(A_WHILE if number > 2 else MOMENT)
            await self._turn()
            if number % 4 == 3:
                await self._perhaps(self.stage.sweeper.sweep)
            with suppress(BackendUnavailable):
                if await self.in_time(done):
                    return
        raise Unfinished(self.name)

    async def until(self, job: str, state: JobState) -> None:
        async def done() -> bool:
            row = await self.stage.backend.ledger.job(job)
            return row is not None and row.state is state and not row.intents

        await self.goes_on(done)

    async def until_task(self, key: str, state: TaskState) -> None:
        async def done() -> bool:
            row = await self.stage.backend.ledger.task(task_id(key, self.request()))
            return row is not None and row.state is state

        await self.goes_on(done)

    async def comes_to_rest(self) -> list[Violation]:
        """What is wrong when nothing is on its way any more."""
        found: list[Violation] | None = None
        for _ in range(_QUIET_ROUNDS):
            if not await self._turn():
                found = await self.audited(self.calm)
                if not found:
                    break
            await self.stage.passes(A_WHILE)
        if found is None:  # what was never looked at is not in order
            raise Unfinished(self.name)
        return found

    async def audited(self, aws: Aws) -> list[Violation]:
        """What is wrong by what the tables say, to somebody who reads them in this way."""
        now_us = int(self.stage.clock.now().timestamp() * 1_000_000)
        evidence = await from_dynamo.evidence_of(
            aws.call,
            self._place,
            settled=True,
            taken_at_us=now_us,
            pauses=(),
            only=self.jobs,
        )
        assert len(evidence.jobs) == len(self.jobs)
        return audit(evidence)

    async def _turn(self) -> bool:
        """Functions are invoked once each; whether there was anything for them."""
        relayed = await self._relayed()
        saved = await self._perhaps(self._save)
        dispatched = await self._perhaps(lambda: self.stage.dispatcher.step(NO_WAIT))
        return bool(relayed or saved or dispatched)

    async def _perhaps(self, call: Callable[[], Awaitable[T]]) -> T | None:
        with suppress(BackendUnavailable):
            return await self.in_time(call)
        return None

    async def _relayed(self) -> bool:
        for shard, iterator in list(self._iterators.items()):
            answer = await self.calm.call(
                "dynamodbstreams", "get_records", ShardIterator=iterator, Limit=100
            )
            self._pending += answer["Records"]
            self._iterators[shard] = answer["NextShardIterator"]
        if not self._pending:
            return False
        batch = self._pending
        first = await self.in_time(lambda: self._relay.tell(batch))
        places = [records.place_of(record) for record in batch]
        self._pending = [] if first is None else batch[places.index(first) :]
        return True

    async def _save(self) -> bool:
        backend = self.stage.backend
        delivery = await backend.bus.receive(
            "history", types=tuple(EVENT_TYPES), limit=10, wait=NO_WAIT
        )
        if delivery is None:
            return False
        log: Any = backend.events
        await log.save(delivery.events)
        await backend.bus.acknowledge("history", delivery.receipt)
        return True


async def _nowhere(_: object, reason: str) -> None:
    raise AssertionError(reason)


async def _shards(aws: Aws, table: str) -> dict[str, str]:
    found = await aws.call("dynamodbstreams", "list_streams", TableName=table)
    arn = found["Streams"][0]["StreamArn"]
    stream = await aws.call("dynamodbstreams", "describe_stream", StreamArn=arn)
    iterators = {}
    for shard in stream["StreamDescription"]["Shards"]:
        answer = await aws.call(
            "dynamodbstreams",
            "get_shard_iterator",
            StreamArn=arn,
            ShardId=shard["ShardId"],
            ShardIteratorType="LATEST",
        )
        iterators[shard["ShardId"]] = answer["ShardIterator"]
    return iterators


@asynccontextmanager
async def theatre(
    folder: Path, clock: FakeClock, aws: TroubledAws, name: str
) -> AsyncIterator[Theatre]:
    """A story on the installation of a folder, which other stories share."""
    calm = Aws(stand_in().place)
    with stand_in().in_time_of(clock):
        try:
            names = await names_in(calm, folder, QUEUES, CONSUMERS)
            async with aws_backend(aws, names, clock) as backend:
                told = Theatre(Stage(backend), aws, calm, names, folder, name)
                await told.begin()
                try:
                    yield told
                finally:
                    aws.end()
        finally:
            await calm.close()


Story = Callable[[Theatre], Awaitable[None]]
