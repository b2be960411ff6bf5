"""The contract of the queue on SQS, and the handling of SQS's own behaviour."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.client import AwsClient, AwsResponse, CallRefused
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queue.task_queue import SqsTaskQueue
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import drain, receive_now, send
from longshore.testing.contracts.suite import (
    START,
    TICK,
    Opener,
    PortContract,
    advance_until_done,
    clause,
    running,
    without_time_passing,
)
from longshore.testing.contracts.task_queue import TaskQueueContract, TaskQueueSharedContract
from tests.aws.backends import QUEUES, AwsContract, on_aws
from tests.aws.call_faults import (
    Call,
    CallFault,
    FaultyAws,
    response_lost,
    throttled,
    with_parameters,
)

SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)
HIDDEN = 30 * SECOND
RECEIVE, SEND, DELETE = "receive_message", "send_message_batch", "delete_message_batch"
HIDE = "change_message_visibility_batch"
ATTEMPTS = 3
without_faults = with_parameters()
POLL_REQUESTS = 6  # of a receive that waits: each lane is looked into and listened on


class _SqsBackend(AwsContract, PortContract):
    aws: FaultyAws  # of the backend that is opened first
    queues: tuple[str, ...] = ("a", "default", "other")

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        self.clock = clock
        async with on_aws(tmp_path, clock, queues=self.queues, queue=self.make_queue) as backend:
            try:
                yield backend
            finally:
                # Long polls end in the clock's time, which moves only when a test advances it.
                closing = asyncio.create_task(backend.queue.close())
                await advance_until_done(closing, clock, step=20 * SECOND)

    def make_queue(self, aws: AwsClient, names: Names, clock: FakeClock) -> SqsTaskQueue:
        self.names = names
        if not hasattr(self, "aws"):
            self.aws = aws = FaultyAws(aws)
        return SqsTaskQueue(aws, names, clock)

    async def second_fails(self, call: Call) -> AwsResponse:
        """The second entry of a batch is not done, or the only one: SQS itself has stumbled."""
        entries = self.aws.calls[-1][1]["Entries"]
        at = min(1, len(entries) - 1)
        others = [*entries[:at], *entries[at + 1 :]]
        answer = await call(Entries=others) if others else {}
        return {**answer, "Failed": [{"Id": entries[at]["Id"], "Code": "InternalError"}]}

    async def advance_while(self, work: Awaitable[Any]) -> Any:
        """The outcome of something that pauses between its tries."""
        return await advance_until_done(asyncio.ensure_future(work), self.clock, step=SECOND / 10)

    async def wait_for_calls(self, operation: str, times: int) -> None:
        async with asyncio.timeout(10):
            while self.aws.count(operation) < times:
                await asyncio.sleep(0.001)

    async def send_raw(self, name: str, body: str) -> None:
        """Send a message through SQS itself, without the adapter."""
        url = (await self.aws.call("sqs", "get_queue_url", QueueName=name))["QueueUrl"]
        await self.aws.call("sqs", "send_message", QueueUrl=url, MessageBody=body)


class TestSqsTaskQueue(_SqsBackend, TaskQueueContract, TaskQueueSharedContract):
    queues = (*QUEUES, "c", "none")


class TestBatches(_SqsBackend):
    @pytest.mark.parametrize("times", [1, ATTEMPTS])
    @clause
    async def test_a_message_that_failed_in_a_batch_is_sent_again(
        self, backend: Backend, times: int
    ) -> None:
        self.aws.inject(SEND, *[self.second_fails] * times)
        messages = _outgoing("a", "b", "c")
        unsent = messages[1:2] if times == ATTEMPTS else []
        assert await self.advance_while(backend.queue.send(messages)) == unsent
        assert sorted(await drain(backend)) == (["a", "c"] if unsent else ["a", "b", "c"])

    @pytest.mark.parametrize(("fault", "copies"), [(throttled, 1), (response_lost, 2)])
    @clause
    async def test_a_send_without_a_response_loses_no_message_and_at_most_duplicates_it(
        self, backend: Backend, fault: CallFault, copies: int
    ) -> None:
        self.aws.inject(SEND, fault)
        assert await self.advance_while(backend.queue.send(_outgoing("a", "b"))) == []
        assert Counter(await drain(backend)) == {"a": copies, "b": copies}

    @pytest.mark.parametrize("operation", [DELETE, HIDE])
    @pytest.mark.parametrize("times", [1, ATTEMPTS])
    @clause
    async def test_a_receipt_that_failed_in_a_batch_is_retried_and_finally_returned_as_stale(
        self, backend: Backend, operation: str, times: int
    ) -> None:
        receipts = await _received(backend, "a", "b", "c")
        self.aws.inject(operation, *[self.second_fails] * times)
        stale = receipts[1:2] if times == ATTEMPTS else []
        assert await self.advance_while(_work(backend, operation)(receipts)) == stale
        self.clock.advance(HIDDEN)
        assert [message.body for message in await receive_now(backend)] == ["b"] * len(stale)

    @pytest.mark.parametrize("operation", [DELETE, HIDE])
    @clause
    async def test_calls_that_are_all_throttled_raise_backend_unavailable(
        self, backend: Backend, operation: str
    ) -> None:
        receipts = await _received(backend, "a")
        self.aws.inject(operation, *[throttled] * ATTEMPTS)
        with pytest.raises(BackendUnavailable):
            await self.advance_while(_work(backend, operation)(receipts))

    @clause
    async def test_a_delete_whose_response_was_lost_has_removed_the_message(
        self, backend: Backend
    ) -> None:
        receipts = await _received(backend, "a")
        self.aws.inject(DELETE, response_lost)
        assert await self.advance_while(backend.queue.delete(receipts)) == []

    @clause
    async def test_a_message_whose_delay_cannot_be_sent_stays_on_the_queue(
        self, backend: Backend
    ) -> None:
        (receipt,) = await _received(backend, "a")
        self.aws.inject(SEND, *[throttled] * ATTEMPTS)
        with pytest.raises(BackendUnavailable):
            await self.advance_while(backend.queue.delay(receipt, until=START))
        self.clock.advance(HIDDEN)
        assert [message.receive_count for message in await receive_now(backend)] == [2]


class TestTime(_SqsBackend):
    @clause
    async def test_a_message_for_much_later_comes_early_and_is_delayed_again(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        due_at = START + HOUR - SECOND
        await send(backend, "later", visible_at=due_at)

        for _ in range(3):
            clock.advance(HOUR / 4 - TICK)
            assert await receive_now(backend) == []
            clock.advance(TICK)
            (message,) = await receive_now(backend)
            assert (message.body, message.receive_count) == ("later", 1)
            await backend.queue.delay(message.receipt, until=due_at)

        clock.advance(due_at - clock.now() - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert [message.body for message in await receive_now(backend)] == ["later"]

    @clause
    async def test_a_message_is_hidden_for_twelve_hours_at_most(self, backend: Backend) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=20 * HOUR)
        assert await backend.queue.extend([message.receipt], hidden_for=20 * HOUR) == []
        assert self.aws.calls[-1][1]["Entries"][0]["VisibilityTimeout"] == 12 * 3600
        self.clock.advance(12 * HOUR)
        assert [again.receive_count for again in await receive_now(backend)] == [2]

    @clause
    async def test_a_delayed_message_counts_its_receives_from_zero(self, backend: Backend) -> None:
        await send(backend, "poison")
        counts = []
        for number in range(RECEIVE_LIMIT + 3):
            (message,) = await receive_now(backend, hidden_for=HIDDEN)
            counts.append(message.receive_count)
            if number == 2:
                await backend.queue.delay(message.receipt, until=self.clock.now())
            self.clock.advance(HIDDEN)

        assert await receive_now(backend) == []
        assert counts == [1, 2, 3, *range(1, RECEIVE_LIMIT + 1)]
        (dead,) = await backend.queue.dead_letters("default", limit=10)
        assert (dead.id, dead.receive_count) == (message.id, RECEIVE_LIMIT)


class TestPolls(_SqsBackend):
    @clause
    async def test_a_cancelled_receive_keeps_no_message(self, open_backend: Opener) -> None:
        async with open_backend() as first, open_backend() as second:
            async with running(_wait(first)):
                await self.wait_for_calls(RECEIVE, POLL_REQUESTS)
            await send(second, "a")
            await self.wait_for_calls(DELETE, 1)

            (message,) = await without_time_passing(_wait(second))
            assert (message.body, message.receive_count) == ("a", 1)

    @pytest.mark.parametrize("after", [False, True], ids=["with it", "after it"])
    @clause
    async def test_a_receive_that_is_cancelled_during_a_call_keeps_no_message(
        self, backend: Backend, after: bool
    ) -> None:
        async def cancels(call: Call) -> AwsResponse:
            answer = await call()
            waiting.cancel()
            if after:
                await asyncio.sleep(0)
            return answer

        await send(backend, "a")
        self.aws.inject(RECEIVE, without_faults, cancels)
        waiting = asyncio.create_task(_wait(backend))
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [message.receive_count for message in await receive_now(backend)] == [1]

    @clause
    async def test_messages_beyond_the_limit_of_a_receive_are_returned(
        self, backend: Backend
    ) -> None:
        both = asyncio.Barrier(2)

        async def together(call: Call) -> AwsResponse:
            answer = await call()
            if answer.get("Messages"):
                await both.wait()
            return answer

        self.aws.inject(RECEIVE, *[together] * 6)
        async with running(_wait(backend, limit=1)) as waiting:
            await self.wait_for_calls(RECEIVE, POLL_REQUESTS)
            await send(backend, "a", priority=Priority.HIGH)
            await send(backend, "a", priority=Priority.LOW)
            (first,) = await without_time_passing(waiting)
        (second,) = await receive_now(backend)
        assert {first.priority, second.priority} == {Priority.HIGH, Priority.LOW}
        assert (first.receive_count, second.receive_count) == (1, 1)

    @clause
    async def test_closing_returns_the_messages_of_open_polls(self, open_backend: Opener) -> None:
        async with open_backend() as first, open_backend() as second:
            async with running(_wait(first)):
                await self.wait_for_calls(RECEIVE, POLL_REQUESTS)
            async with running(first.queue.close()) as closing:
                await send(second, "a")
                await self.wait_for_calls(DELETE, 1)

                assert [
                    message.receive_count for message in await without_time_passing(_wait(second))
                ] == [1]
                assert not closing.done()
                await advance_until_done(closing, self.clock, step=5 * SECOND)

    @clause
    async def test_a_poll_that_has_not_returned_serves_the_next_receive(
        self, backend: Backend
    ) -> None:
        async with running(_wait(backend)):
            await self.wait_for_calls(RECEIVE, POLL_REQUESTS)
        async with running(_wait(backend)) as waiting:
            await send(backend, "a")

            assert [message.receive_count for message in await without_time_passing(waiting)] == [1]
        assert self.aws.count(RECEIVE) == POLL_REQUESTS

    @clause
    async def test_under_load_an_empty_lane_costs_one_request_per_receive(
        self, backend: Backend
    ) -> None:
        await send(backend, *(["m"] * 16))
        for _ in range(16):
            (message,) = await receive_now(backend, limit=1)
            await backend.queue.delete([message.receipt])

        counts = [self.aws.count(operation) for operation in (SEND, RECEIVE, DELETE, HIDE)]
        assert counts == [2, 2 * 16, 16, 0]

    @clause
    async def test_a_lane_that_fails_does_not_block_the_messages_of_others(
        self, backend: Backend
    ) -> None:
        await send(backend, "a", priority=Priority.HIGH)
        self.aws.inject(RECEIVE, without_faults, throttled)
        assert [message.body for message in await receive_now(backend)] == ["a"]

    @pytest.mark.parametrize("looks", [0, 3], ids=["looking", "waiting"])
    @clause
    async def test_a_failed_receive_raises_an_error_and_the_next_succeeds(
        self, backend: Backend, looks: int
    ) -> None:
        async def too_many_hidden(_: Call) -> AwsResponse:
            raise CallRefused("OverLimit", {})

        self.aws.inject(RECEIVE, *[without_faults] * looks, too_many_hidden)
        with pytest.raises(BackendUnavailable, match="SQS cannot hide more messages"):
            await without_time_passing(_wait(backend))
        await send(backend, "a")
        assert [message.body for message in await without_time_passing(_wait(backend))] == ["a"]


class TestQueues(_SqsBackend):
    @clause
    async def test_a_queue_that_is_not_deployed_is_named(self, backend: Backend) -> None:
        for call in (
            backend.queue.send([OutgoingMessage(queue="nope", body="a")]),
            receive_now(backend, "nope"),
            backend.queue.depth("nope"),
            backend.queue.dead_letters("nope", limit=1),
        ):
            with pytest.raises(BackendRejected, match=r"-nope-.*is not deployed"):
                await call

    @clause
    async def test_a_queue_that_is_not_deployed_does_not_affect_others(
        self, backend: Backend
    ) -> None:
        nowhere = OutgoingMessage(queue="nope", body="a")
        assert await backend.queue.send([nowhere, *_outgoing("b")]) == [nowhere]

        (message,) = await receive_now(backend, "default", "nope")
        foreign = message.receipt.replace('"default"', '"nope"', 1)
        assert await backend.queue.delete([foreign, message.receipt]) == [foreign]

    @clause
    async def test_a_message_that_another_program_sent_is_received(self, backend: Backend) -> None:
        await self.send_raw(self.names.queue("default", Priority.LOW), "by hand")
        (message,) = await receive_now(backend)

        assert (message.body, message.receive_count) == ("by hand", 1)
        assert timedelta(0) <= START - message.sent_at < timedelta(milliseconds=1)

    @clause
    async def test_many_dead_letters_are_read_and_stay(self, backend: Backend) -> None:
        self.aws.inject("list_queues", *[with_parameters(MaxResults=9)] * 9)
        await self.send_raw(self.names.dead_letter_queue("a", Priority.LOW), "00")
        for number in range(1, 25):
            await self.send_raw(
                self.names.dead_letter_queue("other", Priority.HIGH), f"{number:02}"
            )

        first = await backend.queue.dead_letters(None, limit=100)
        assert sorted(letter.body for letter in first) == [f"{number:02}" for number in range(25)]
        assert [letter.body for letter in first if letter.queue == "a"] == ["00"]
        assert len(await backend.queue.dead_letters("other", limit=12)) == 12
        assert await backend.queue.delete_dead_letter(first[-1].id) is True
        assert await backend.queue.dead_letters(None, limit=100) == first[:-1]

    @clause
    async def test_exactly_one_of_several_deletions_of_a_dead_letter_returns_true(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await self.send_raw(self.names.dead_letter_queue("default", Priority.NORMAL), "poison")
            (letter,) = await first.queue.dead_letters("default", limit=10)
            drops = [entry.queue.delete_dead_letter(letter.id) for entry in (first, second) * 2]
            assert sorted(await asyncio.gather(*drops)) == [False, False, False, True]


def _outgoing(*bodies: str) -> list[OutgoingMessage]:
    return [OutgoingMessage(queue="default", body=body) for body in bodies]


async def _received(backend: Backend, *bodies: str) -> list[str]:
    await send(backend, *bodies)
    return [message.receipt for message in await receive_now(backend, hidden_for=HIDDEN)]


def _work(backend: Backend, operation: str) -> Callable[[list[str]], Awaitable[list[str]]]:
    if operation == DELETE:
        return backend.queue.delete
    return lambda receipts: backend.queue.extend(receipts, hidden_for=10 * HIDDEN)


async def _wait(backend: Backend, *, limit: int = 10) -> list[Message]:
    wait = 20 * SECOND
    return await backend.queue.receive(["default"], limit=limit, hidden_for=HIDDEN, wait=wait)
