"""Stories of what is done with ports where no job in a story would come to it."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from longshore.adapters.aws import records
from longshore.adapters.aws.accounts import DynamoAccounts
from longshore.adapters.aws.output import DynamoOutputLog
from longshore.adapters.aws.queue import SqsTaskQueue
from longshore.adapters.aws.queue_calls import Sqs
from longshore.core.budgets import NO_BUDGET, Account, close, job_account, reserve, settle
from longshore.core.events.types import Usage
from longshore.core.limits import RECEIVE_LIMIT
from longshore.errors import VersionConflict
from longshore.ports.accounts import Accounts
from longshore.ports.output import OutputEntry, Stream
from longshore.ports.queue import Message, Outgoing
from longshore.services.relay import Relay
from tests.aws.call_theatre import CLIENT_TRIES, MOMENT, Story, Theatre, Unfinished
from tests.unit.services.stage import NO_WAIT, TENANT, task_id

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
_LATER = 14 * HOUR  # more than SQS delays, and more than it hides
_LONGEST = 3 * 12 * HOUR  # if it is hidden once more for as long as can be


async def messages_that_are_put_off_given_back_and_worn_out(told: Theatre) -> None:
    await _put_off_for_long(told)
    await _brought_for_nobody(told)
    await _worn_out(told)


async def _put_off_for_long(told: Theatre) -> None:
    """Not before its time, not lost, and gone when it is deleted."""
    queue, clock = told.stage.backend.queue, told.stage.clock
    await _sent(told, "later")
    held = await _the_only_one(told, "later")
    assert await told.asks(lambda: queue.extend([held.receipt], hidden_for=2 * MINUTE)) == []
    until = clock.now() + _LATER
    await told.asks(lambda: queue.put_off(held.receipt, until=until))
    for moment in (16 * MINUTE, 12 * HOUR + 20 * MINUTE, _LATER - MINUTE):
        await told.stage.passes(until - _LATER + moment - clock.now())
        assert await _look(told, "later") == []
    await told.stage.passes(until - clock.now())
    again = await _received(told, "later", within=_LONGEST)
    async with SqsTaskQueue(told.aws, told.names, clock) as another_process:
        await told.asks(lambda: another_process.delete([again.receipt]))
    await _gone(told, "later")


async def _brought_for_nobody(told: Theatre) -> None:
    """A poll is out whose receive has been called off: what it brings is there for others."""
    queue = told.stage.backend.queue
    waiting = asyncio.ensure_future(
        queue.receive(["default"], limit=1, hidden_for=MINUTE, wait=timedelta(seconds=20))
    )
    await told.stage.passes(MOMENT)
    waiting.cancel()
    await _sent(told, "given-back")
    await told.stage.passes(MOMENT)
    await asyncio.wait([waiting])
    if not waiting.cancelled():
        waiting.exception()  # it met trouble before it could be called off
    message = await _received(told, "given-back")
    await told.asks(lambda: queue.delete([message.receipt]))
    await _gone(told, "given-back")


async def _worn_out(told: Theatre) -> None:
    """Put off in between, so that SQS alone does not know how often it was received."""
    queue, clock = told.stage.backend.queue, told.stage.clock
    await _sent(told, "worn-out")
    await _the_only_one(told, "worn-out")
    await told.stage.passes(2 * MINUTE)
    for _ in range(RECEIVE_LIMIT - 2):
        await _look(told, "worn-out", hidden_for=NO_WAIT)
    held = await _received(told, "worn-out")
    await told.asks(lambda: queue.put_off(held.receipt, until=clock.now() + MINUTE))
    letters: list[Message] = []
    for _ in range(4 * RECEIVE_LIMIT):
        await told.stage.passes(2 * MINUTE)
        await _look(told, "worn-out", hidden_for=NO_WAIT)
        letters = await _dead(told, "worn-out")
        if letters:
            break
    assert letters, "it was received too often and is not among the dead letters"
    assert await _look(told, "worn-out") == []
    for _ in range(4):
        for letter in letters:
            await told.asks(lambda one=letter.id: queue.drop_dead_letter(one))
        await told.stage.passes(MINUTE)
        letters = await _dead(told, "worn-out")
    assert letters == []


def _body(told: Theatre, name: str) -> str:
    return f"{told.name}-{name}"


async def _sent(told: Theatre, name: str) -> None:
    outgoing = Outgoing(queue="default", body=_body(told, name))
    for _ in range(CLIENT_TRIES):
        if not await told.asks(lambda: told.stage.backend.queue.send([outgoing])):
            return
    raise Unfinished(name)


async def _look(told: Theatre, name: str, hidden_for: timedelta = MINUTE) -> list[Message]:
    """Those of this story that are there; others are left alone."""
    found = await told.asks(
        lambda: told.stage.backend.queue.receive(
            ["default"], limit=10, hidden_for=hidden_for, wait=NO_WAIT
        )
    )
    return [one for one in found if one.body == _body(told, name)]


async def _received(told: Theatre, name: str, within: timedelta = 10 * MINUTE) -> Message:
    return (await _all_received(told, name, within))[0]


async def _all_received(told: Theatre, name: str, within: timedelta = 10 * MINUTE) -> list[Message]:
    for _ in range(20):
        if found := await _look(told, name):
            return found
        await told.stage.passes(within / 20)
    raise Unfinished(name)


async def _the_only_one(told: Theatre, name: str) -> Message:
    """What was just sent: a lost answer may have doubled it, or hidden a copy for a while."""
    queue = told.stage.backend.queue
    held, *more = await _all_received(told, name)
    hidden = True
    while hidden or more:
        if more:
            receipts = [one.receipt for one in more]
            await told.asks(lambda some=receipts: queue.delete(some))
        else:
            await told.asks(lambda: queue.extend([held.receipt], hidden_for=5 * MINUTE))
            await told.stage.passes(2 * MINUTE)
            hidden = False
        more = await _look(told, name)
    return held


async def _gone(told: Theatre, name: str) -> None:
    """All of it: a lost answer may have doubled it, and each can be deleted."""
    for _ in range(CLIENT_TRIES):
        await told.stage.passes(2 * MINUTE)
        found = await _look(told, name)
        if not found:
            return
        receipts = [one.receipt for one in found]
        await told.asks(lambda some=receipts: told.stage.backend.queue.delete(some))
    raise Unfinished(name)


async def _dead(told: Theatre, name: str) -> list[Message]:
    letters = await told.asks(lambda: told.stage.backend.queue.dead_letters("default", limit=100))
    return [one for one in letters if one.body == _body(told, name)]


async def output_that_comes_in_no_order_and_in_large_pieces(told: Theatre) -> None:
    """Whoever appends again changes nothing; readers find every entry, in order, as it was."""
    log, now = told.stage.backend.output, told.stage.clock.now()
    task, chance = task_id("output", told.name), random.Random(told.name)
    entries = [
        OutputEntry(attempt=1, sequence=number, at=now, stream=Stream.STDOUT, data=data)
        for number, data in enumerate([b"%d" % n for n in range(1, 9)], start=1)
    ]
    entries[6] = _with(entries[6], chance.randbytes(800_000))
    # Seven to eight first, then the middle of the gap, its left, and its right.
    for first, last in ((7, 8), (3, 4), (1, 2), (5, 6)):
        some = entries[first - 1 : last]
        await told.asks(lambda part=some: log.append(task, part))
        late = [_with(one, b"another") for one in some]
        await told.asks(lambda part=late: log.append(task, part))
    assert await told.asks(lambda: log.read(task)) == entries
    another = DynamoOutputLog(told.aws, told.names, told.stage.clock)
    assert await told.asks(lambda: another.read(task)) == entries


def _with(entry: OutputEntry, data: bytes) -> OutputEntry:
    return OutputEntry(
        attempt=entry.attempt,
        sequence=entry.sequence,
        at=entry.at,
        stream=entry.stream,
        data=data,
    )


class _Broken(Exception):
    """What was to be stored cannot be read to its end."""


async def a_blob_that_breaks_off(told: Theatre) -> None:
    """On its way in nothing of it is seen; on its way out the reader goes on where it was."""
    blobs, key = told.stage.backend.blobs, f"{told.name}/broken"

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 6 * 1024 * 1024
        raise _Broken

    async def put() -> str:
        try:
            await blobs.put(key, pieces())
        except _Broken:
            return "broken"
        return "stored"

    assert await told.asks(put) == "broken"
    assert await told.asks(lambda: blobs.size(key)) is None
    whole = random.Random(told.name).randbytes(5000)
    await told.asks(lambda: blobs.put(key, whole))
    told.aws.cut_off.add(key)
    assert await told.asks(lambda: blobs.get(key)) == whole
    assert not told.aws.cut_off


async def a_record_that_nobody_can_read(told: Theatre) -> None:
    """It is put where somebody looks after it, or it comes again; those behind it go on."""
    queue = told.names.consumer(records.UNDELIVERED)
    made = await told.calm.call("sqs", "create_queue", QueueName=queue)
    relay = Relay(
        bus=told.stage.backend.bus,
        place_of=records.place_of,
        told_by=records.told_by,
        aside=records.Aside(Sqs(told.aws, told.stage.clock), told.names),
    )
    record: dict[str, Any] = {
        "eventName": "MODIFY",
        "dynamodb": {
            "SequenceNumber": "1",
            "Keys": {"id": {"S": told.name}},
            "NewImage": {"id": {"S": told.name}, "row": {"S": "nonsense"}},
        },
    }
    for _ in range(CLIENT_TRIES):
        if await told.in_time(lambda: relay.tell([record])) is None:
            break
    else:
        raise Unfinished(told.name)
    kept = await _bodies(told, made["QueueUrl"])
    assert any(told.name in body for body in kept)


async def _bodies(told: Theatre, url: str) -> Sequence[str]:
    found: list[str] = []
    while True:
        answer = await told.calm.call(
            "sqs", "receive_message", QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=3600
        )
        if not (messages := answer.get("Messages", [])):
            return found
        found += [one["Body"] for one in messages]


async def an_account_that_two_spend_from(told: Theatre) -> None:
    """Whoever is overtaken, and whichever answer is lost: what each has spent is counted once."""
    here = _Spender(told, told.stage.backend.accounts, "here")
    there = _Spender(told, DynamoAccounts(told.aws, told.names), "there")
    for answers in (1, 2, 3):
        await here.reserves(answers - 1, meanwhile=partial(there.reserves, answers - 1))
        await there.settles(answers, meanwhile=partial(here.settles, answers))
    for spender in (here, there):
        account = await spender.account()
        assert account.spent == account.taken == Usage(turns=2 * 3, cost_usd=2 * 3.0)
    await here.ends(meanwhile=there.ends)
    left = await here.account()
    assert (left.closed, left.holdings) == (account.spent, ())


_Deed = Callable[[], Awaitable[None]]


async def _nothing() -> None:
    pass


class _Spender:
    """A process with an attempt that asks a model: each answer costs a dollar."""

    def __init__(self, told: Theatre, accounts: Accounts, task: str) -> None:
        self._told = told
        self._accounts = accounts
        self._who = partial(dict[str, Any], task_id=task, attempt=1)
        self._name = job_account(told.name)
        self._task = task

    async def account(self) -> Account:
        found = await self._told.asks(lambda: self._accounts.account(TENANT, self._name))
        return found or Account(tenant=TENANT, name=self._name)

    async def reserves(self, answers: int, meanwhile: _Deed = _nothing) -> None:
        wanted = Usage(cost_usd=5.0)
        terms = self._who(spent=_spent(answers), reserved=Usage(), wanted=wanted)
        reserving = partial(reserve, limit=NO_BUDGET, **terms)
        await self._change(f"reserves {answers}", reserving, meanwhile)

    async def settles(self, answers: int, meanwhile: _Deed = _nothing) -> None:
        terms = self._who(spent=_spent(answers), reserved=Usage())
        await self._change(f"settles {answers}", partial(settle, **terms), meanwhile)

    async def ends(self, meanwhile: _Deed = _nothing) -> None:
        await self._change("ends", partial(close, **self._who()), meanwhile)

    async def _change(
        self,
        what: str,
        decide: Callable[[Account], Account | str | None],
        meanwhile: _Deed,
    ) -> None:
        for _ in range(CLIENT_TRIES):
            stored = await self.account()
            decided = decide(stored)
            if not isinstance(decided, Account):
                return  # it was written, and that was not heard
            await meanwhile()
            meanwhile = _nothing
            changed = replace(decided, version=stored.version + 1, change_id=f"{self._task} {what}")
            try:
                await self._told.asks(lambda one=changed: self._accounts.commit(one))
            except VersionConflict:
                continue
            return
        raise Unfinished(what)


def _spent(answers: int) -> Usage:
    return Usage(turns=answers, cost_usd=float(answers))


PORT_STORIES: Sequence[Story] = (
    messages_that_are_put_off_given_back_and_worn_out,
    output_that_comes_in_no_order_and_in_large_pieces,
    a_blob_that_breaks_off,
    a_record_that_nobody_can_read,
    an_account_that_two_spend_from,
)
