"""The harness for scenarios in which calls to AWS fail.

The functions are here as mappings run them: what the ledger's stream holds is relayed, what the bus
brings is saved and dispatched, and what failed is handed over again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from longshore.adapters.aws.backend import aws_backend
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.lambda_records import DynamoChangeStream
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.audit import dynamo_reader
from longshore.audit.audit import Violation, audit
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendUnavailable
from longshore.services.event_delivery import Relay
from longshore.testing.clock import FakeClock
from tests.aws.audit_names import audit_names_in
from tests.aws.backends import installation_names
from tests.aws.network_faults import FaultInjectingAws
from tests.aws.stand_in import stand_in
from tests.unit.services.harness import NO_WAIT, ServiceHarness, job_id, task_id

T = TypeVar("T")

QUEUES = ("default",)
CONSUMERS = ("dispatcher", "history")
SHORT_STEP = timedelta(milliseconds=100)
LONG_STEP = timedelta(seconds=25)
_ROUNDS = 400
_SETTLE_ROUNDS = 100
CLIENT_ATTEMPTS = 40  # more than storms last, at all sites that one call comes by


class ScenarioUnfinished(AssertionError):
    """A job did not come to its end, although nothing goes wrong any more."""


class AwsFaultHarness:
    """One scenario: its processes, and the delivery of events between them."""

    def __init__(
        self,
        services: ServiceHarness,
        aws: FaultInjectingAws,
        reliable_aws: AwsClient,
        names: Names,
        folder: Path,
        name: str,
    ) -> None:
        self.services = services
        self.name = name
        self.jobs: list[str] = []
        self.aws = aws
        self.reliable_aws = reliable_aws  # as AWS's own parts ask each other
        self.names = names
        self._audit_names = audit_names_in(folder)
        self._iterators: dict[str, str] = {}
        self._pending: list[dict[str, Any]] = []
        self._relay = Relay(
            bus=services.backend.bus,
            stream=_ReadableStream(SqsClient(reliable_aws, services.clock), names),
        )

    # What people do -----------------------------------------------------------------------------

    def request_id(self, name: str = "") -> str:
        return f"{self.name}{name}"

    async def retry(self, call: Callable[[], Awaitable[T]], attempts: int = CLIENT_ATTEMPTS) -> T:
        """The result of a call that is repeated while the backend is unavailable."""
        for _ in range(attempts - 1):
            with suppress(BackendUnavailable):
                return await self.advance_until_done(call)
        return await self.advance_until_done(call)

    async def advance_until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        doing: asyncio.Future[T] = asyncio.ensure_future(call())
        await self.services.advance(NO_WAIT)
        while not doing.done():
            await self.services.advance(SHORT_STEP)
        return await doing

    async def submit(self, *tasks: dict[str, Any], request: str = "") -> str:
        name = self.request_id(request)
        self.jobs.append(job_id(name))
        await self.retry(lambda: self.services.submit(*tasks, request_id=name))
        return job_id(name)

    # What happens -------------------------------------------------------------------------------

    async def start_stream(self) -> None:
        """Events from now on."""
        shards = await _shards(self.reliable_aws, self._audit_names.ledger)
        self._iterators.update(shards)

    async def run_until(self, done: Callable[[], Awaitable[bool]]) -> None:
        """Run everything until a condition holds."""
        for number in range(_ROUNDS):
            await self.services.advance(LONG_STEP if number > 2 else SHORT_STEP)
            await self._run_functions()
            if number % 4 == 3:
                await self._ignore_unavailable(self.services.sweeper.sweep)
            with suppress(BackendUnavailable):
                if await self.advance_until_done(done):
                    return
        raise ScenarioUnfinished(self.name)

    async def until_job(self, job: str, state: JobState) -> None:
        async def done() -> bool:
            row = await self.services.backend.ledger.get_job(job)
            return row is not None and row.state is state and not row.intents

        await self.run_until(done)

    async def until_task(self, key: str, state: TaskState) -> None:
        async def done() -> bool:
            row = await self.services.backend.ledger.get_task(task_id(key, self.request_id()))
            return row is not None and row.state is state

        await self.run_until(done)

    async def settle(self) -> list[Violation]:
        """What is wrong when nothing is on its way any more."""
        result: list[Violation] | None = None
        for _ in range(_SETTLE_ROUNDS):
            if not await self._run_functions():
                result = await self.audit_tables(self.reliable_aws)
                if not result:
                    break
            await self.services.advance(LONG_STEP)
        if result is None:  # what was never looked at is not in order
            raise ScenarioUnfinished(self.name)
        return result

    async def audit_tables(self, aws: AwsClient) -> list[Violation]:
        """The violations in the tables, read through this client."""
        now_us = int(self.services.clock.now().timestamp() * 1_000_000)
        evidence = await dynamo_reader.read_snapshot(
            aws.call,
            self._audit_names,
            settled=True,
            taken_at_us=now_us,
            pauses=(),
            job_ids=self.jobs,
        )
        assert len(evidence.jobs) == len(self.jobs)
        return audit(evidence)

    async def _run_functions(self) -> bool:
        """Functions are invoked once each; whether there was anything for them."""
        relayed = await self._relay_records()
        saved = await self._ignore_unavailable(self._save)
        dispatched = await self._ignore_unavailable(lambda: self.services.dispatcher.step(NO_WAIT))
        return bool(relayed or saved or dispatched)

    async def _ignore_unavailable(self, call: Callable[[], Awaitable[T]]) -> T | None:
        with suppress(BackendUnavailable):
            return await self.advance_until_done(call)
        return None

    async def _relay_records(self) -> bool:
        for shard, iterator in list(self._iterators.items()):
            answer = await self.reliable_aws.call(
                "dynamodbstreams", "get_records", ShardIterator=iterator, Limit=100
            )
            self._pending += answer["Records"]
            self._iterators[shard] = answer["NextShardIterator"]
        if not self._pending:
            return False
        batch = self._pending
        first = await self.advance_until_done(lambda: self._relay.publish(batch))
        positions = [record["dynamodb"]["SequenceNumber"] for record in batch]
        self._pending = [] if first is None else batch[positions.index(first) :]
        return True

    async def _save(self) -> bool:
        backend = self.services.backend
        delivery = await backend.bus.receive(
            "history", types=tuple(EVENT_TYPES), limit=10, wait=NO_WAIT
        )
        if delivery is None:
            return False
        log: Any = backend.events
        await log.save(delivery.events)
        await backend.bus.acknowledge("history", delivery.receipt)
        return True


class _ReadableStream(DynamoChangeStream):
    """A stream whose records can all be read."""

    async def dead_letter(self, record: object, reason: str) -> None:
        raise AssertionError(reason)


async def _shards(aws: AwsClient, table: str) -> dict[str, str]:
    result = await aws.call("dynamodbstreams", "list_streams", TableName=table)
    arn = result["Streams"][0]["StreamArn"]
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
async def open_harness(
    folder: Path, clock: FakeClock, aws: FaultInjectingAws, name: str
) -> AsyncIterator[AwsFaultHarness]:
    """A scenario on the installation of a folder, which other scenarios share."""
    calm = AwsClient(stand_in().client_options)
    with stand_in().follow_clock(clock):
        try:
            names = await installation_names(calm, folder, QUEUES, CONSUMERS)
            async with aws_backend(aws, names, clock) as backend:
                harness = AwsFaultHarness(ServiceHarness(backend), aws, calm, names, folder, name)
                await harness.start_stream()
                try:
                    yield harness
                finally:
                    aws.end()
        finally:
            await calm.close()


Scenario = Callable[[AwsFaultHarness], Awaitable[None]]
