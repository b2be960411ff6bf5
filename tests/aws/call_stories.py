"""Stories that make every call which the AWS backend makes, told under trouble.

The functions are here as mappings run them: what the ledger's stream holds is relayed, what the bus
brings is saved and dispatched, and what failed is handed over again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from longshore.adapters.aws import records
from longshore.adapters.aws.backend import aws_backend
from longshore.adapters.aws.calls import Aws
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.codec import EVENT_TYPES
from longshore.core.failures import ErrorCategory
from longshore.core.keys import KeyRecord, Scope
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.states import JobState, TaskState
from longshore.errors import BackendUnavailable, Conflict
from longshore.ports.backend import Backend
from longshore.ports.output import START
from longshore.ports.queue import Outgoing
from longshore.services.relay import Relay
from longshore.services.reviewing import Reviewing
from longshore.testing.auditing import from_dynamo
from longshore.testing.auditing.audit import Violation, audit
from longshore.testing.clock import FakeClock
from longshore.testing.runner import Script, fails, prints, succeeds
from tests.aws.backends import names_in
from tests.aws.evidence import place_in
from tests.aws.standin import stand_in
from tests.aws.wire_trouble import TroubledAws
from tests.unit.services.samples import LARGE
from tests.unit.services.stage import NO_WAIT, TENANT, Stage, a_task, job_id, task_id

T = TypeVar("T")

QUEUES = ("default",)
CONSUMERS = ("dispatcher", "history")
MOMENT = timedelta(milliseconds=100)
A_WHILE = timedelta(seconds=25)
_ROUNDS = 40
_QUIET_ROUNDS = 20
_CLIENT_TRIES = 6


class Unfinished(AssertionError):
    """A job did not come to its end, although nothing goes wrong any more."""


class Theatre:
    """One story: its processes, and what brings events from one to the other."""

    def __init__(self, stage: Stage, aws: TroubledAws, calm: Aws, folder: Path, name: str) -> None:
        self.stage = stage
        self.name = name
        self.jobs: list[str] = []
        self._aws = aws
        self._calm = calm  # as AWS's own parts ask each other
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

    async def asks(self, call: Callable[[], Awaitable[T]]) -> T:
        """What somebody is answered who asks again when there is no answer."""
        for _ in range(_CLIENT_TRIES - 1):
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
        shards = await _shards(self._calm, self._place.ledger)
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
                found = await self._audited()
                if not found:
                    break
            await self.stage.passes(A_WHILE)
        if found is None:  # what was never looked at is not in order
            raise Unfinished(self.name)
        return found

    async def _audited(self) -> list[Violation]:
        now_us = int(self.stage.clock.now().timestamp() * 1_000_000)
        evidence = await from_dynamo.evidence_of(
            self._calm.call,
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
            answer = await self._calm.call(
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
                told = Theatre(Stage(backend), aws, calm, folder, name)
                await told.begin()
                try:
                    yield told
                finally:
                    aws.end()
        finally:
            await calm.close()


# The stories ------------------------------------------------------------------------------------

Story = Callable[[Theatre], Awaitable[None]]


async def a_dag_with_a_retry_and_large_documents(told: Theatre) -> None:
    runner = told.stage.runner
    runner.plays("a", Script(says=[prints("hello\n")], ending=succeeds({"large": LARGE})))
    runner.plays("b", Script(ending=fails(ErrorCategory.NETWORK)), Script(says=[prints("b\n")]))
    async with told.stage.working():
        job = await told.submits(
            a_task("a", input={"argv": ["echo", LARGE]}),
            a_task("b", "a"),
            a_task("c", "a"),
            a_task("d", "b", "c"),
        )
        await told.until(job, JobState.COMPLETED)


async def a_failure_a_resume_a_cancellation_and_a_review(told: Theatre) -> None:
    backend: Backend = told.stage.backend
    own = Definition(name=told.request(), runner=RunnerKind.COMMAND, requires_review=True)
    await told.asks(lambda: backend.definitions.put(TENANT, own))
    runner = told.stage.runner
    runner.plays("a", Script(ending=fails(ErrorCategory.VALIDATION)), Script())
    reviewing = Reviewing(
        backend=backend, transitions=told.stage.transitions, dispatcher=told.stage.dispatcher
    )
    async with told.stage.working():
        job = await told.submits(a_task("a"), a_task("b", "a"), a_task("r", name=own.name))
        await told.until_task("r", TaskState.IN_REVIEW)
        await told.until_task("a", TaskState.FAILED)
        name = told.request()
        await told.asks(
            lambda: _once(told.stage.resuming.resume(job, [task_id("a", name)], by="ann"))
        )
        await told.asks(
            lambda: _once(reviewing.approve(TENANT, task_id("r", name), by="ann", attempt=1))
        )
        await told.until(job, JobState.COMPLETED)
        other = await told.submits(a_task("x", delay=86_400), a_task("y", "x"), request="-off")
        await told.asks(lambda: told.stage.cancelling.cancel(other, by="bob"))
        await told.until(other, JobState.CANCELLED)


async def _once(wish: Awaitable[Any]) -> None:
    """A wish that may have been fulfilled already: who asks again may be told so."""
    with suppress(Conflict):
        await wish


async def a_message_that_nobody_could_deal_with(told: Theatre) -> None:
    job = await told.submits(a_task("a"))
    queue, at_once = told.stage.backend.queue, timedelta(0)

    async def wears_out() -> bool:
        row = await told.stage.backend.ledger.task(task_id("a", told.request()))
        if row is not None and row.state is TaskState.FAILED:
            return True
        for _ in range(RECEIVE_LIMIT + 1):
            if not await queue.receive(["default"], limit=10, hidden_for=at_once, wait=at_once):
                break
        return False

    await told.goes_on(wears_out)
    async with told.stage.working():
        letters = told.stage.dead_letters
        await told.asks(lambda: letters.replay_matching(TENANT, by="ann"))
        await told.until(job, JobState.COMPLETED)


async def whatever_else_is_asked_at_a_desk(told: Theatre) -> None:
    """What no worker needs: each is asked until it is answered, and the answers are right."""
    backend, name, now = told.stage.backend, told.request(), told.stage.clock.now()
    await _blobs_of(told, backend, name)
    await _keys_of(told, backend, name)
    await told.asks(lambda: backend.queues.pause(name, by="ann", reason=name, now=now))
    assert name in [one.name for one in await told.asks(backend.queues.paused)]
    await told.asks(lambda: backend.queues.resume(name))
    assert name not in [one.name for one in await told.asks(backend.queues.paused)]
    own = Definition(name=name, runner=RunnerKind.COMMAND)
    await told.asks(lambda: backend.definitions.put(TENANT, own))
    assert name in [one.name for one in await told.asks(lambda: backend.definitions.list(TENANT))]
    told.stage.runner.plays("a", Script(says=[prints("on\n")], ending=None))
    await told.asks(lambda: backend.queue.send([Outgoing(queue="default", body="nonsense")]))
    async with told.stage.working():
        job = await told.submits(a_task("a"), a_task("b", "a"))
        await told.until_task("a", TaskState.PROCESSING)
        await told.goes_on(
            lambda: backend.output.wait(task_id("a", name), after=START, wait=NO_WAIT)
        )
        assert len(await told.asks(lambda: backend.output.read(task_id("a", name)))) == 1
        await told.asks(lambda: _once(told.stage.cancelling.cancel(job, by="ann")))
        await told.until(job, JobState.CANCELLED)
    await _listings_of(told, backend, job)
    await told.asks(lambda: backend.definitions.delete(TENANT, name))


async def _blobs_of(told: Theatre, backend: Backend, name: str) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 6 * 1024 * 1024

    await told.asks(lambda: backend.blobs.put(f"{name}/large", pieces()))
    assert await told.asks(lambda: backend.blobs.size(f"{name}/large")) == 18 * 1024 * 1024
    assert await told.asks(lambda: backend.blobs.keys(f"{name}/")) == [f"{name}/large"]
    await told.asks(lambda: backend.blobs.delete(f"{name}/large"))
    assert await told.asks(lambda: backend.blobs.size(f"{name}/large")) is None


async def _keys_of(told: Theatre, backend: Backend, name: str) -> None:
    record = KeyRecord(
        id=f"k-{name}",
        tenant=TENANT,
        name=name,
        hash=name,
        scopes=frozenset({Scope.READ}),
        created_at=told.stage.clock.now(),
    )
    await told.asks(lambda: _once(backend.keys.add(record)))
    assert await told.asks(lambda: backend.keys.find(name)) == record
    assert record in await told.asks(lambda: backend.keys.list(TENANT))
    now = told.stage.clock.now()
    await told.asks(lambda: backend.keys.revoke(TENANT, record.id, now=now))
    found = await told.asks(lambda: backend.keys.find(name))
    assert found is not None
    assert found.revoked_at is not None


async def _listings_of(told: Theatre, backend: Backend, job: str) -> None:
    ledger, entity = backend.ledger, f"JOB#{job}"
    assert job in [
        row.id for row in (await told.asks(lambda: ledger.list_jobs(TENANT, limit=200))).items
    ]
    of_job = await told.asks(lambda: ledger.list_tasks(TENANT, job_id=job))
    assert len(of_job.items) == 2
    assert await told.asks(lambda: ledger.list_tasks(TENANT, limit=5))
    assert await told.asks(lambda: ledger.find(TENANT, job))
    assert (await told.asks(lambda: backend.queue.depth("default"))).dead >= 0

    async def told_of() -> bool:
        page = await backend.events.query(TENANT, entity=entity, limit=50)
        history = await backend.events.history(TENANT, entity)
        latest = await backend.events.latest(TENANT, entity)
        return bool(len(page.items) == len(history) >= 2 and latest == history[-1])

    await told.goes_on(told_of)


STORIES: Sequence[Story] = (
    a_dag_with_a_retry_and_large_documents,
    a_failure_a_resume_a_cancellation_and_a_review,
    a_message_that_nobody_could_deal_with,
    whatever_else_is_asked_at_a_desk,
)
