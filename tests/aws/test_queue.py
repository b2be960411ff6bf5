"""The queue on SQS held to its contract, and what SQS does besides."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.calls import Answer, Aws, Refused
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue import SqsTaskQueue
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.states import Priority
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.queue import Message, Outgoing
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.queue import TaskQueueContract, TaskQueueSharedContract
from longshore.testing.contracts.queue_deliveries import ReceiptClauses
from longshore.testing.contracts.samples import empty, send, take
from longshore.testing.contracts.suite import (
    START,
    TICK,
    Opener,
    PortContract,
    clause,
    in_time,
    soon,
    under_way,
)
from tests.aws.backends import QUEUES, OnAws, on_aws
from tests.aws.trouble import Call, Mishap, Trouble, asked_for, lost, throttled

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
HIDDEN = 30 * SECOND
RECEIVE, SEND, DELETE = "receive_message", "send_message_batch", "delete_message_batch"
HIDE = "change_message_visibility_batch"
TRIES = 3
untroubled = asked_for()
LOOKS_AND_POLLS = 6  # of a receive that waits: each lane is looked into and listened on


async def never_says_stale(call: Call) -> Answer:
    """AWS answers so to a removal with an old handle, where the stand-in refuses."""
    answer = await call()
    return {"Successful": [*answer.get("Successful", []), *answer.get("Failed", [])]}


class _Sqs(OnAws, PortContract):
    aws: Trouble  # of the backend that is opened first
    queues: tuple[str, ...] = ("a", "default", "other")

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        self.clock = clock
        async with on_aws(tmp_path, clock, queues=self.queues, queue=self.made) as backend:
            try:
                yield backend
            finally:
                # Long polls end in the clock's time, which stands still unless it is moved.
                closing = asyncio.create_task(backend.queue.close())
                await in_time(closing, clock, step=20 * SECOND)

    def made(self, aws: Aws, names: Names, clock: FakeClock) -> SqsTaskQueue:
        self.names = names
        if not hasattr(self, "aws"):
            self.aws = aws = Trouble(aws)
        return SqsTaskQueue(aws, names, clock)

    async def second_fails(self, call: Call) -> Answer:
        """The second entry of a batch is not done, or the only one: SQS itself has stumbled."""
        entries = self.aws.made[-1][1]["Entries"]
        at = min(1, len(entries) - 1)
        others = [*entries[:at], *entries[at + 1 :]]
        answer = await call(Entries=others) if others else {}
        return {**answer, "Failed": [{"Id": entries[at]["Id"], "Code": "InternalError"}]}

    async def passing(self, work: Awaitable[Any]) -> Any:
        """The outcome of something that pauses between its tries."""
        return await in_time(asyncio.ensure_future(work), self.clock, step=SECOND / 10)

    async def until_made(self, operation: str, times: int) -> None:
        async with asyncio.timeout(10):
            while self.aws.count(operation) < times:
                await asyncio.sleep(0.001)

    async def send_raw(self, name: str, body: str) -> None:
        """As anybody may who knows SQS."""
        url = (await self.aws.call("sqs", "get_queue_url", QueueName=name))["QueueUrl"]
        await self.aws.call("sqs", "send_message", QueueUrl=url, MessageBody=body)


class TestSqsTaskQueue(_Sqs, TaskQueueContract, TaskQueueSharedContract):
    queues = (*QUEUES, "c", "none")


class TestReceiptsWhereRemovingNeverFails(_Sqs, ReceiptClauses):
    def made(self, aws: Aws, names: Names, clock: FakeClock) -> SqsTaskQueue:
        queue = super().made(aws, names, clock)
        self.aws.meet(DELETE, *[never_says_stale] * 9)
        return queue


class TestBatches(_Sqs):
    @pytest.mark.parametrize("times", [1, TRIES])
    @clause
    async def test_what_a_batch_left_is_sent_again(self, backend: Backend, times: int) -> None:
        self.aws.meet(SEND, *[self.second_fails] * times)
        messages = _outgoing("a", "b", "c")
        unsent = messages[1:2] if times == TRIES else []
        assert await self.passing(backend.queue.send(messages)) == unsent
        assert sorted(await empty(backend)) == (["a", "c"] if unsent else ["a", "b", "c"])

    @pytest.mark.parametrize(("mishap", "copies"), [(throttled, 1), (lost, 2)])
    @clause
    async def test_a_send_without_an_answer_loses_nothing_and_doubles_at_most(
        self, backend: Backend, mishap: Mishap, copies: int
    ) -> None:
        self.aws.meet(SEND, mishap)
        assert await self.passing(backend.queue.send(_outgoing("a", "b"))) == []
        assert Counter(await empty(backend)) == {"a": copies, "b": copies}

    @clause
    async def test_bodies_arrive_that_sqs_would_not_take(self, backend: Backend) -> None:
        large = [f"{number}{'x' * 100_000}" for number in range(6)]
        bodies = ["", '"', "\ud800", "\x00\ufffe", *large]
        await send(backend, *bodies)

        assert sorted(await empty(backend)) == sorted(bodies)
        assert self.aws.count(SEND) == 3

    @pytest.mark.parametrize("operation", [DELETE, HIDE])
    @pytest.mark.parametrize("times", [1, TRIES])
    @clause
    async def test_a_receipt_that_failed_alone_is_tried_again_and_not_current_at_last(
        self, backend: Backend, operation: str, times: int
    ) -> None:
        receipts = await _received(backend, "a", "b", "c")
        self.aws.meet(operation, *[self.second_fails] * times)
        stale = receipts[1:2] if times == TRIES else []
        assert await self.passing(_work(backend, operation)(receipts)) == stale
        self.clock.advance(HIDDEN)
        assert [message.body for message in await take(backend)] == ["b"] * len(stale)

    @pytest.mark.parametrize("operation", [DELETE, HIDE])
    @clause
    async def test_silence_tells_of_no_receipt(self, backend: Backend, operation: str) -> None:
        receipts = await _received(backend, "a")
        self.aws.meet(operation, *[throttled] * TRIES)
        with pytest.raises(BackendUnavailable):
            await self.passing(_work(backend, operation)(receipts))

    @clause
    async def test_a_message_is_removed_although_nobody_heard_of_it(self, backend: Backend) -> None:
        receipts = await _received(backend, "a")
        self.aws.meet(DELETE, lost)
        assert await self.passing(backend.queue.delete(receipts)) == []

    @clause
    async def test_a_message_that_cannot_be_sent_again_stays(self, backend: Backend) -> None:
        (receipt,) = await _received(backend, "a")
        self.aws.meet(SEND, *[throttled] * TRIES)
        with pytest.raises(BackendUnavailable):
            await self.passing(backend.queue.put_off(receipt, until=START))
        self.clock.advance(HIDDEN)
        assert [message.receives for message in await take(backend)] == [2]


class TestTime(_Sqs):
    @pytest.mark.parametrize("delay", [2 * HOUR, 72 * HOUR], ids=["2 h", "3 days"])
    @pytest.mark.parametrize("looks", [True, False], ids=["looked for", "left alone"])
    @clause
    async def test_a_message_for_much_later_is_heard_at_its_time(
        self, backend: Backend, clock: FakeClock, delay: timedelta, looks: bool
    ) -> None:
        await send(backend, "later", visible_at=START + delay)

        while looks and clock.now() + HOUR < START + delay:
            clock.advance(HOUR - 7 * SECOND)
            assert await take(backend) == []
        clock.advance(START + delay - clock.now() - TICK)
        assert not looks or await take(backend) == []
        clock.advance(TICK)
        (first,) = await take(backend)
        clock.advance(HIDDEN)
        (second,) = await take(backend)

        assert (first.body, first.receives, first.sent_at) == ("later", 1, START)
        assert (second.id, second.receives) == (first.id, 2)

    @clause
    async def test_a_message_stays_hidden_for_twelve_hours_at_most(self, backend: Backend) -> None:
        await send(backend, "a")
        (message,) = await take(backend, hidden_for=20 * HOUR)
        for _ in range(23):
            self.clock.advance(HOUR / 2)
            assert await backend.queue.extend([message.receipt], hidden_for=2 * HOUR) == []
        assert {each.get("VisibilityTimeout") for _, each in self.aws.made} == {None, 12 * 3600}
        assert self.aws.made[-1][1]["Entries"][0]["VisibilityTimeout"] == 1800
        self.clock.advance(HOUR / 2)
        assert await backend.queue.extend([message.receipt], hidden_for=HIDDEN) == [message.receipt]
        assert [again.receives for again in await take(backend)] == [2]

    @clause
    async def test_a_message_that_was_put_off_dies_no_later(self, backend: Backend) -> None:
        await send(backend, "poison")
        counts = []
        for number in range(RECEIVE_LIMIT + 1):
            (message,) = await take(backend, hidden_for=HIDDEN)
            counts.append(message.receives)
            if number == 5:
                await backend.queue.put_off(message.receipt, until=self.clock.now())
            self.clock.advance(HIDDEN)

        assert await take(backend) == []
        assert counts == [*range(1, 7), *range(6, RECEIVE_LIMIT + 1)]
        (dead,) = await backend.queue.dead_letters("default", limit=10)
        assert (dead.id, dead.receives, dead.sent_at) == (message.id, RECEIVE_LIMIT, START)


class TestPolls(_Sqs):
    @clause
    async def test_a_cancelled_receive_keeps_no_message(self, open_backend: Opener) -> None:
        async with open_backend() as first, open_backend() as second:
            async with under_way(_wait(first)):
                await self.until_made(RECEIVE, LOOKS_AND_POLLS)
            await send(second, "a")
            await self.until_made(DELETE, 1)

            (message,) = await soon(_wait(second))
            assert (message.body, message.receives, message.sent_at) == ("a", 1, START)

    @pytest.mark.parametrize("after", [False, True], ids=["with it", "after it"])
    @clause
    async def test_a_cancelled_look_takes_nothing(self, backend: Backend, after: bool) -> None:
        async def cancels(call: Call) -> Answer:
            answer = await call()
            waiting.cancel()
            if after:
                await asyncio.sleep(0)
            return answer

        await send(backend, "a")
        self.aws.meet(RECEIVE, untroubled, cancels)
        waiting = asyncio.create_task(_wait(backend))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [message.receives for message in await take(backend)] == [1]

    @clause
    async def test_what_polls_bring_beyond_the_limit_is_given_back(self, backend: Backend) -> None:
        both = asyncio.Barrier(2)

        async def together(call: Call) -> Answer:
            answer = await call()
            if answer.get("Messages"):
                await both.wait()
            return answer

        self.aws.meet(RECEIVE, *[together] * 6)
        async with under_way(_wait(backend, limit=1)) as waiting:
            await self.until_made(RECEIVE, LOOKS_AND_POLLS)
            await send(backend, "a", priority=Priority.HIGH)
            await send(backend, "a", priority=Priority.LOW)
            (first,) = await soon(waiting)
        (second,) = await take(backend)
        assert {first.priority, second.priority} == {Priority.HIGH, Priority.LOW}
        assert (first.receives, second.receives) == (1, 1)

    @clause
    async def test_closing_gives_back_what_polls_bring(self, open_backend: Opener) -> None:
        async with open_backend() as first, open_backend() as second:
            async with under_way(_wait(first)):
                await self.until_made(RECEIVE, LOOKS_AND_POLLS)
            async with under_way(first.queue.close()) as closing:
                await send(second, "a")
                await self.until_made(DELETE, 1)

                assert [message.receives for message in await soon(_wait(second))] == [1]
                assert not closing.done()
                await in_time(closing, self.clock, step=5 * SECOND)

    @clause
    async def test_a_poll_that_is_still_out_serves_the_next_receive(self, backend: Backend) -> None:
        async with under_way(_wait(backend)):
            await self.until_made(RECEIVE, LOOKS_AND_POLLS)
        async with under_way(_wait(backend)) as waiting:
            await send(backend, "a")

            assert [message.receives for message in await soon(waiting)] == [1]
        assert self.aws.count(RECEIVE) == LOOKS_AND_POLLS

    @clause
    async def test_with_everything_busy_a_task_costs_three_requests(self, backend: Backend) -> None:
        await send(backend, *(["m"] * 16))
        for _ in range(16):
            (message,) = await take(backend, limit=1)
            await backend.queue.delete([message.receipt])

        # Each of the empty lanes was looked into once, when its turn came.
        counts = [self.aws.count(operation) for operation in (SEND, RECEIVE, DELETE, HIDE)]
        assert counts == [2, 16 + 2, 16, 0]
        self.clock.advance(2 * SECOND)
        await send(backend, "m")
        await take(backend, limit=1)
        assert self.aws.count(RECEIVE) == 16 + 2 + 2

    @clause
    async def test_a_lane_in_trouble_does_not_keep_what_others_have(self, backend: Backend) -> None:
        await send(backend, "a", priority=Priority.HIGH)
        self.aws.meet(RECEIVE, untroubled, throttled)
        assert [message.body for message in await take(backend)] == ["a"]

    @pytest.mark.parametrize("looks", [0, 3], ids=["looking", "waiting"])
    @clause
    async def test_trouble_is_told_and_passes(self, backend: Backend, looks: int) -> None:
        async def too_many_hidden(_: Call) -> Answer:
            raise Refused("OverLimit", {})

        self.aws.meet(RECEIVE, *[untroubled] * looks, too_many_hidden)
        with pytest.raises(BackendUnavailable, match="as many messages are hidden as SQS can"):
            await soon(_wait(backend))
        await send(backend, "a")
        assert [message.body for message in await soon(_wait(backend))] == ["a"]


class TestQueues(_Sqs):
    @clause
    async def test_a_queue_that_is_not_deployed_is_named(self, backend: Backend) -> None:
        for call in (
            backend.queue.send([Outgoing(queue="nope", body="a")]),
            take(backend, "nope"),
            backend.queue.depth("nope"),
            backend.queue.dead_letters("nope", limit=1),
        ):
            with pytest.raises(BackendRejected, match=r"-nope-.*is not deployed"):
                await call

    @clause
    async def test_a_queue_that_is_not_deployed_stops_no_other(self, backend: Backend) -> None:
        nowhere = Outgoing(queue="nope", body="a")
        assert await backend.queue.send([nowhere, *_outgoing("b")]) == [nowhere]

        (message,) = await take(backend, "default", "nope")
        foreign = message.receipt.replace('"default"', '"nope"', 1)
        assert await backend.queue.delete([foreign, message.receipt]) == [foreign]

    @clause
    async def test_a_message_that_somebody_else_sent_is_received(self, backend: Backend) -> None:
        await self.send_raw(self.names.queue("default", Priority.LOW), "by hand")
        (message,) = await take(backend)

        assert (message.body, message.receives) == ("by hand", 1)
        assert timedelta(0) <= START - message.sent_at < timedelta(milliseconds=1)

    @clause
    async def test_many_dead_letters_are_read_and_stay(self, backend: Backend) -> None:
        self.aws.meet("list_queues", *[asked_for(MaxResults=9)] * 9)
        await self.send_raw(self.names.dead("a", Priority.LOW), "00")
        for number in range(1, 25):
            await self.send_raw(self.names.dead("other", Priority.HIGH), f"{number:02}")

        first = await backend.queue.dead_letters(None, limit=100)
        assert sorted(letter.body for letter in first) == [f"{number:02}" for number in range(25)]
        assert [letter.body for letter in first if letter.queue == "a"] == ["00"]
        assert len(await backend.queue.dead_letters("other", limit=12)) == 12
        assert await backend.queue.drop_dead_letter(first[-1].id) is True
        assert await backend.queue.dead_letters(None, limit=100) == first[:-1]

    @clause
    async def test_one_of_several_who_drop_is_told_so(self, open_backend: Opener) -> None:
        async with open_backend() as first, open_backend() as second:
            await self.send_raw(self.names.dead("default", Priority.NORMAL), "poison")
            (letter,) = await first.queue.dead_letters("default", limit=10)
            drops = [each.queue.drop_dead_letter(letter.id) for each in (first, second) * 2]
            assert sorted(await asyncio.gather(*drops)) == [False, False, False, True]


def _outgoing(*bodies: str) -> list[Outgoing]:
    return [Outgoing(queue="default", body=body) for body in bodies]


async def _received(backend: Backend, *bodies: str) -> list[str]:
    await send(backend, *bodies)
    return [message.receipt for message in await take(backend, hidden_for=HIDDEN)]


def _work(backend: Backend, operation: str) -> Callable[[list[str]], Awaitable[list[str]]]:
    if operation == DELETE:
        return backend.queue.delete
    return lambda receipts: backend.queue.extend(receipts, hidden_for=10 * HIDDEN)


async def _wait(backend: Backend, *, limit: int = 10) -> list[Message]:
    wait = 20 * SECOND
    return await backend.queue.receive(["default"], limit=limit, hidden_for=HIDDEN, wait=wait)
