"""Scenarios that call ports directly, in ways that the jobs of other scenarios do not."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from longshore.adapters.aws import lambda_records
from longshore.adapters.aws.config_stores import DynamoBudgets
from longshore.adapters.aws.names import UNDELIVERED
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.adapters.aws.queue.sqs import SqsClient
from longshore.adapters.aws.queue.task_queue import SqsTaskQueue
from longshore.core.budgets import (
    NO_BUDGET,
    Reservation,
    SharedBudget,
    close,
    job_budget_name,
    reserve,
    settle,
)
from longshore.core.events.types import Usage
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState
from longshore.errors import VersionConflict
from longshore.ports.configuration import Budgets
from longshore.ports.output import CHUNK_LIMIT_BYTES, OutputChunk, OutputPosition, Stream
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.services.event_delivery import Relay
from longshore.testing.fake_runner import Script, fails, prints
from tests.aws.scenario_harness import (
    CLIENT_ATTEMPTS,
    SHORT_STEP,
    AwsFaultHarness,
    Scenario,
    ScenarioUnfinished,
)
from tests.unit.services.harness import NO_WAIT, TENANT, make_task, task_id

MINUTE = timedelta(minutes=1)
_LATER = 14 * MINUTE  # less than SQS delays at most


async def messages_that_are_delayed_returned_and_exhausted(harness: AwsFaultHarness) -> None:
    await _long_delay(harness)
    await _abandoned_poll(harness)
    await _exhausted_message(harness)


async def _long_delay(harness: AwsFaultHarness) -> None:
    """Not before its time, not lost, and gone when it is deleted."""
    queue, clock = harness.services.backend.queue, harness.services.clock
    await _send(harness, "later")
    message = await _wait_for_only_message(harness, "later")
    assert await harness.retry(lambda: queue.extend([message.receipt], hidden_for=2 * MINUTE)) == []
    until = clock.now() + _LATER
    await harness.retry(lambda: queue.delay(message.receipt, until=until))
    for moment in (MINUTE, _LATER - MINUTE):
        await harness.services.advance(until - _LATER + moment - clock.now())
        assert await _receive_now(harness, "later") == []
    await harness.services.advance(until - clock.now())
    again = await _wait_for_message(harness, "later")
    another_process = SqsTaskQueue(harness.aws, harness.names, clock)
    await harness.retry(lambda: another_process.delete([again.receipt]))
    await _delete_all(harness, "later")


async def _abandoned_poll(harness: AwsFaultHarness) -> None:
    """A message that a cancelled receive's poll returns is available to other receivers."""
    queue = harness.services.backend.queue
    waiting = asyncio.ensure_future(
        queue.receive(["default"], limit=1, hidden_for=MINUTE, wait=timedelta(seconds=20))
    )
    await harness.services.advance(SHORT_STEP)
    waiting.cancel()
    await _send(harness, "given-back")
    await harness.services.advance(SHORT_STEP)
    await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # it failed before it could be cancelled
    message = await _wait_for_message(harness, "given-back")
    await harness.retry(lambda: queue.delete([message.receipt]))
    await _delete_all(harness, "given-back")


async def _exhausted_message(harness: AwsFaultHarness) -> None:
    """It is delayed in between, so that SQS's own count of receives is not enough."""
    queue, clock = harness.services.backend.queue, harness.services.clock
    await _send(harness, "worn-out")
    await _wait_for_only_message(harness, "worn-out")
    await harness.services.advance(2 * MINUTE)
    for _ in range(RECEIVE_LIMIT - 2):
        await _receive_now(harness, "worn-out", hidden_for=NO_WAIT)
    message = await _wait_for_message(harness, "worn-out")
    await harness.retry(lambda: queue.delay(message.receipt, until=clock.now() + MINUTE))
    letters: list[Message] = []
    for _ in range(4 * RECEIVE_LIMIT):
        await harness.services.advance(2 * MINUTE)
        await _receive_now(harness, "worn-out", hidden_for=NO_WAIT)
        letters = await _wait_for_dead_letter(harness, "worn-out")
        if letters:
            break
    assert letters, "it was received too often and is not among the dead letters"
    assert await _receive_now(harness, "worn-out") == []
    for _ in range(4):
        for letter in letters:
            await harness.retry(lambda item=letter.id: queue.delete_dead_letter(item))
        await harness.services.advance(MINUTE)
        letters = await _wait_for_dead_letter(harness, "worn-out")
    assert letters == []


def _body(harness: AwsFaultHarness, name: str) -> str:
    return f"{harness.name}-{name}"


async def _send(harness: AwsFaultHarness, name: str) -> None:
    outgoing = OutgoingMessage(queue="default", body=_body(harness, name))
    for _ in range(CLIENT_ATTEMPTS):
        if not await harness.retry(lambda: harness.services.backend.queue.send([outgoing])):
            return
    raise ScenarioUnfinished(name)


async def _receive_now(
    harness: AwsFaultHarness, name: str, hidden_for: timedelta = MINUTE
) -> list[Message]:
    """Receive the messages of this scenario; others are left alone."""
    result = await harness.retry(
        lambda: harness.services.backend.queue.receive(
            ["default"], limit=10, hidden_for=hidden_for, wait=NO_WAIT
        )
    )
    return [item for item in result if item.body == _body(harness, name)]


async def _wait_for_message(
    harness: AwsFaultHarness, name: str, within: timedelta = 10 * MINUTE
) -> Message:
    return (await _wait_for_messages(harness, name, within))[0]


async def _wait_for_messages(
    harness: AwsFaultHarness, name: str, within: timedelta = 10 * MINUTE
) -> list[Message]:
    for _ in range(20):
        if result := await _receive_now(harness, name):
            return result
        await harness.services.advance(within / 20)
    raise ScenarioUnfinished(name)


async def _wait_for_only_message(harness: AwsFaultHarness, name: str) -> Message:
    """What was just sent: a lost answer may have doubled it, or hidden a copy for a while."""
    queue = harness.services.backend.queue
    message, *more = await _wait_for_messages(harness, name)
    hidden = True
    while hidden or more:
        if more:
            receipts = [item.receipt for item in more]
            await harness.retry(lambda some=receipts: queue.delete(some))
        else:
            await harness.retry(lambda: queue.extend([message.receipt], hidden_for=5 * MINUTE))
            await harness.services.advance(2 * MINUTE)
            hidden = False
        more = await _receive_now(harness, name)
    return message


async def _delete_all(harness: AwsFaultHarness, name: str) -> None:
    """All of it: a lost answer may have doubled it, and each can be deleted."""
    for _ in range(CLIENT_ATTEMPTS):
        await harness.services.advance(2 * MINUTE)
        result = await _receive_now(harness, name)
        if not result:
            return
        receipts = [item.receipt for item in result]
        await harness.retry(lambda some=receipts: harness.services.backend.queue.delete(some))
    raise ScenarioUnfinished(name)


async def _wait_for_dead_letter(harness: AwsFaultHarness, name: str) -> list[Message]:
    letters = await harness.retry(
        lambda: harness.services.backend.queue.dead_letters("default", limit=100)
    )
    return [item for item in letters if item.body == _body(harness, name)]


async def output_that_is_repeated_and_large(harness: AwsFaultHarness) -> None:
    """A repeated append changes nothing; readers find every entry, in order, as it was."""
    log, now = harness.services.backend.output, harness.services.clock.now()
    task, chance = task_id("output", harness.name), random.Random(harness.name)
    entries = [
        OutputChunk(attempt=1, sequence=number, at=now, stream=Stream.STDOUT, data=b"%d" % number)
        for number in range(1, 9)
    ]
    entries[6] = _with_data(entries[6], chance.randbytes(CHUNK_LIMIT_BYTES))
    for first, last in ((1, 2), (3, 4), (5, 6), (7, 8)):
        batch = entries[first - 1 : last]
        await harness.retry(lambda part=batch: log.append(task, part))
        late = [_with_data(entry, b"another") for entry in batch]
        await harness.retry(lambda part=late: log.append(task, part))
    assert await harness.retry(lambda: log.read(task)) == entries
    other = DynamoOutputLog(harness.aws, harness.names, harness.services.clock)
    after = OutputPosition(1, 3)
    assert await harness.retry(lambda: other.read(task, after=after)) == entries[3:]


def _with_data(entry: OutputChunk, data: bytes) -> OutputChunk:
    return OutputChunk(
        attempt=entry.attempt,
        sequence=entry.sequence,
        at=entry.at,
        stream=entry.stream,
        data=data,
    )


class _BrokenStream(Exception):
    """What was to be stored cannot be read to its end."""


async def a_blob_that_breaks_off(harness: AwsFaultHarness) -> None:
    """A partial upload is invisible, and an interrupted read resumes at its position."""
    blobs, key = harness.services.backend.blobs, f"{harness.name}/broken"

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 6 * 1024 * 1024
        raise _BrokenStream

    async def put() -> str:
        try:
            await blobs.put(key, pieces())
        except _BrokenStream:
            return "broken"
        return "stored"

    assert await harness.retry(put) == "broken"
    assert await harness.retry(lambda: blobs.size(key)) is None
    whole = random.Random(harness.name).randbytes(5000)
    await harness.retry(lambda: blobs.put(key, whole))
    harness.aws.truncated_blobs.add(key)
    assert await harness.retry(lambda: blobs.get(key)) == whole
    assert not harness.aws.truncated_blobs


async def a_record_that_cannot_be_parsed(harness: AwsFaultHarness) -> None:
    """It is put on the queue for undelivered records, or retried; later records are relayed."""
    queue = harness.names.consumer(UNDELIVERED)
    created = await harness.reliable_aws.call("sqs", "create_queue", QueueName=queue)
    relay = Relay(
        bus=harness.services.backend.bus,
        stream=lambda_records.DynamoChangeStream(
            SqsClient(harness.aws, harness.services.clock), harness.names
        ),
    )
    record: dict[str, Any] = {
        "eventName": "MODIFY",
        "dynamodb": {
            "SequenceNumber": "1",
            "Keys": {"id": {"S": harness.name}},
            "NewImage": {"id": {"S": harness.name}, "row": {"S": "nonsense"}},
        },
    }
    for _ in range(CLIENT_ATTEMPTS):
        if await harness.advance_until_done(lambda: relay.publish([record])) is None:
            break
    else:
        raise ScenarioUnfinished(harness.name)
    bodies = await _bodies(harness, created["QueueUrl"])
    assert any(harness.name in body for body in bodies)


async def _bodies(harness: AwsFaultHarness, url: str) -> Sequence[str]:
    result: list[str] = []
    while True:
        answer = await harness.reliable_aws.call(
            "sqs", "receive_message", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=3600
        )
        if not (messages := answer.get("Messages", [])):
            return result
        result += [item["Body"] for item in messages]


async def a_budget_that_two_spend_from(harness: AwsFaultHarness) -> None:
    """Every attempt's usage is counted once, despite conflicts and lost responses."""
    here = _Spender(harness, harness.services.backend.budgets, "here")
    there = _Spender(harness, DynamoBudgets(harness.aws, harness.names), "there")
    for answers in (1, 2, 3):
        await here.reserve(answers - 1, meanwhile=partial(there.reserve, answers - 1))
        await there.settle(answers, meanwhile=partial(here.settle, answers))
    for spender in (here, there):
        account = await spender.budget()
        assert account.spent == account.spent_and_reserved == Usage(turns=2 * 3, cost_usd=2 * 3.0)
    await here.stopping(meanwhile=there.stopping)
    left = await here.budget()
    assert (left.closed_usage, left.reservations) == (account.spent, ())


_Operation = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    pass


class _Spender:
    """A process with an attempt that asks a model: each answer costs a dollar."""

    def __init__(self, harness: AwsFaultHarness, budgets: Budgets, task: str) -> None:
        self._harness = harness
        self._budgets = budgets
        self._name = job_budget_name(harness.name)
        self._task = task

    async def budget(self) -> SharedBudget:
        result = await self._harness.retry(lambda: self._budgets.get(TENANT, self._name))
        return result or SharedBudget(tenant=TENANT, name=self._name)

    async def reserve(self, answers: int, meanwhile: _Operation = _nothing) -> None:
        requested = Usage(cost_usd=5.0)
        own = Reservation(task_id=self._task, attempt=1, spent=_spent(answers))
        reserving = partial(reserve, limit=NO_BUDGET, own=own, requested=requested)
        await self._change(f"reserves {answers}", reserving, meanwhile)

    async def settle(self, answers: int, meanwhile: _Operation = _nothing) -> None:
        settling = partial(
            settle, own=Reservation(task_id=self._task, attempt=1, spent=_spent(answers))
        )
        await self._change(f"settles {answers}", settling, meanwhile)

    async def stopping(self, meanwhile: _Operation = _nothing) -> None:
        await self._change("ends", partial(close, task_id=self._task, attempt=1), meanwhile)

    async def _change(
        self,
        operation: str,
        decide: Callable[[SharedBudget], SharedBudget | str | None],
        meanwhile: _Operation,
    ) -> None:
        for _ in range(CLIENT_ATTEMPTS):
            stored = await self.budget()
            decided = decide(stored)
            if not isinstance(decided, SharedBudget):
                return  # it was written, and the response was lost
            await meanwhile()
            meanwhile = _nothing
            changed = replace(
                decided, version=stored.version + 1, change_id=f"{self._task} {operation}"
            )
            try:
                await self._harness.retry(lambda item=changed: self._budgets.commit(item))
            except VersionConflict:
                continue
            return
        raise ScenarioUnfinished(operation)


def _spent(answers: int) -> Usage:
    return Usage(turns=answers, cost_usd=float(answers))


async def a_job_that_is_removed(harness: AwsFaultHarness) -> None:
    """Nothing of it is left, and at its time its tombstone goes."""
    backend, clock = harness.services.backend, harness.services.clock
    port = backend.require_retention()
    harness.services.runner.set_scripts(
        "a", Script(reports=[prints("on\n")], ending=fails(ErrorCategory.AUTH))
    )
    async with harness.services.running_worker():
        job = await harness.submit(make_task("a"), make_task("b", "a"))
        await harness.until_job(job, JobState.FAILED)
    await harness.settle()
    await harness.retry(lambda: backend.blobs.put(f"jobs/{job}/large", b"x"))

    async def has_ended() -> bool:
        return job in await port.ended_jobs(ended_by=clock.now(), limit=1000)

    async def is_removed() -> bool:
        until = clock.now() + timedelta(hours=1)
        await port.remove_jobs([job], ended_by=clock.now(), remember_until=until)
        return await port.is_removed(job)

    async def nothing_is_due() -> bool:
        return await port.remove_remains(now=clock.now(), limit=10) == 0

    for state in (has_ended, is_removed, nothing_is_due):
        await harness.run_until(state)
    harness.jobs.remove(job)
    assert await harness.retry(lambda: backend.ledger.find_ids(TENANT, job)) == []
    assert await harness.retry(lambda: backend.output.read(f"{job}_a")) == []
    assert await harness.retry(lambda: backend.blobs.list_keys(f"jobs/{job}/")) == []
    await harness.services.advance(timedelta(hours=1))
    await harness.run_until(nothing_is_due)
    assert not await harness.retry(lambda: port.is_removed(job))


PORT_SCENARIOS: Sequence[Scenario] = (
    messages_that_are_delayed_returned_and_exhausted,
    output_that_is_repeated_and_large,
    a_blob_that_breaks_off,
    a_record_that_cannot_be_parsed,
    a_budget_that_two_spend_from,
    a_job_that_is_removed,
)
