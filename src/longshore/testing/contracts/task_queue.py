"""The contract of the ``TaskQueue``; the modules ``queue_*`` have more of its clauses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any

from longshore.core.queues import QueueDepth
from longshore.ports.backend import Backend
from longshore.ports.task_queue import Message, OutgoingMessage
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.queue_deliveries import ReceiptClauses, SendClauses
from longshore.testing.contracts.queue_order import (
    DeadLetterClauses,
    KeyClauses,
    PriorityClauses,
)
from longshore.testing.contracts.samples import receive_now, send
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    advance_until_done,
    clause,
    gather_all,
    running,
    settle,
    without_time_passing,
)

HIDDEN = timedelta(seconds=30)
SECOND = timedelta(seconds=1)
WAKE_UPS = 200


class WaitClauses(PortContract):
    """``receive`` with a wait, measured on the backend's clock."""

    @clause
    async def test_a_receive_that_finds_something_does_not_wait(self, backend: Backend) -> None:
        await send(backend, "a")

        assert [m.body for m in await without_time_passing(_wait(backend, 20 * SECOND))] == ["a"]

    @clause
    async def test_a_waiting_receive_ends_as_soon_as_a_message_is_sent(
        self, backend: Backend
    ) -> None:
        async with running(_wait(backend, 20 * SECOND)) as waiting:
            assert not waiting.done()
            await send(backend, "a")

            assert [message.body for message in await without_time_passing(waiting)] == ["a"]

    @clause
    async def test_a_receive_gives_up_after_its_wait_and_not_before(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        async with running(_wait(backend, 20 * SECOND)) as waiting:
            clock.advance(19 * SECOND)
            await settle()
            assert not waiting.done()

            assert await advance_until_done(waiting, clock, step=SECOND) == []
            assert clock.now() - START < 40 * SECOND

    @clause
    async def test_a_waiting_receive_sees_a_message_at_its_moment(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "later", visible_at=START + 10 * SECOND)

        async with running(_wait(backend, 60 * SECOND)) as waiting:
            messages = await advance_until_done(waiting, clock, step=SECOND)

        assert [message.body for message in messages] == ["later"]
        assert 10 * SECOND <= clock.now() - START < 30 * SECOND

    @clause
    async def test_a_waiting_receive_sees_a_message_that_is_no_longer_hidden(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        await receive_now(backend, hidden_for=10 * SECOND)

        async with running(_wait(backend, 60 * SECOND)) as waiting:
            messages = await advance_until_done(waiting, clock, step=SECOND)

        assert [message.receive_count for message in messages] == [2]
        assert 10 * SECOND <= clock.now() - START < 30 * SECOND

    @clause
    async def test_a_waiting_receive_sees_a_message_that_is_given_back(
        self, backend: Backend
    ) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)

        async with running(_wait(backend, 20 * SECOND)) as waiting:
            await backend.require_queue().delay(message.receipt, until=START)

            assert [again.body for again in await without_time_passing(waiting)] == ["a"]

    @clause
    async def test_a_waiting_receive_sees_a_message_whose_hiding_was_cut_short(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=timedelta(hours=1))

        async with running(_wait(backend, 60 * SECOND)) as waiting:
            await backend.require_queue().extend([message.receipt], hidden_for=10 * SECOND)
            messages = await advance_until_done(waiting, clock, step=SECOND)

        assert [again.receive_count for again in messages] == [2]
        assert 10 * SECOND <= clock.now() - START < 30 * SECOND

    @clause
    async def test_a_message_on_another_queue_ends_no_wait(self, backend: Backend) -> None:
        async with running(_wait(backend, 20 * SECOND)) as waiting:
            await send(backend, "a", queue="other")
            await settle()

            assert not waiting.done()

    @clause
    async def test_no_wake_up_is_lost_between_looking_and_waiting(self, backend: Backend) -> None:
        for number in range(WAKE_UPS):
            receive = asyncio.create_task(_wait(backend, 20 * SECOND))
            # The sender comes a little later each time, to meet every step of the receiver.
            for _ in range(number % 20):
                await asyncio.sleep(0)
            await send(backend, f"m{number}")

            (message,) = await without_time_passing(receive)

            assert message.body == f"m{number}"
            await backend.require_queue().delete([message.receipt])

    @clause
    async def test_one_message_ends_the_wait_of_one_receiver(self, backend: Backend) -> None:
        async with (
            running(_wait(backend, 20 * SECOND)) as first,
            running(_wait(backend, 20 * SECOND)) as second,
        ):
            await send(backend, "a")
            await without_time_passing(
                asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
            )
            await settle()

            assert sorted([first.done(), second.done()]) == [False, True]
            await send(backend, "b")
            bodies = [(await without_time_passing(task))[0].body for task in (first, second)]
            assert sorted(bodies) == ["a", "b"]

    @clause
    async def test_a_receive_that_was_given_up_takes_no_message(self, backend: Backend) -> None:
        async with running(_wait(backend, 20 * SECOND)) as waiting:
            assert not waiting.done()

        await send(backend, "a")

        assert len(await receive_now(backend)) == 1


class ManyReceiversClauses(PortContract):
    """Many at once."""

    @clause
    async def test_many_receivers_never_get_one_message_twice_while_it_is_hidden(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 2):
            bodies = [f"{number}-{index}" for index in range(2 * CALLERS)]
            await send(backend, *bodies)

            answers = await gather_all(receive_now(backend, limit=3) for _ in range(CALLERS))

            received = _received(answers)
            assert sorted(message.body for message in received) == sorted(bodies)
            await backend.require_queue().delete([message.receipt for message in received])

    @clause
    async def test_many_waiting_receivers_share_what_comes(self, backend: Backend) -> None:
        for number in range(self.rounds // 2):
            bodies = [f"{number}-{index}" for index in range(CALLERS)]
            receives = [_wait(backend, 20 * SECOND, limit=1) for _ in range(CALLERS)]
            sends = [send(backend, body) for body in bodies]

            answers = await without_time_passing(gather_all([*receives, *sends]))

            received = _received(answers[:CALLERS])
            assert sorted(message.body for message in received) == sorted(bodies)
            await backend.require_queue().delete([message.receipt for message in received])

    @clause
    async def test_of_many_who_delete_one_message_one_succeeds(self, backend: Backend) -> None:
        for _ in range(self.rounds // 2):
            await send(backend, "a")
            (message,) = await receive_now(backend)

            answers = await gather_all(
                backend.require_queue().delete([message.receipt]) for _ in range(CALLERS)
            )

            assert sorted(answers, key=str) == [[message.receipt]] * (CALLERS - 1) + [[]]

    @clause
    async def test_many_senders_lose_nothing(self, backend: Backend) -> None:
        await gather_all(
            backend.require_queue().send(
                [OutgoingMessage(queue="default", body=f"{sender}-{n}") for n in range(5)]
            )
            for sender in range(CALLERS)
        )

        received = await receive_now(backend, limit=1000)

        assert len({message.body for message in received}) == 5 * CALLERS


def _wait(
    backend: Backend, wait: timedelta, *, limit: int = 10
) -> Coroutine[Any, Any, list[Message]]:
    return backend.require_queue().receive(["default"], limit=limit, hidden_for=HIDDEN, wait=wait)


def _received(answers: list[Any]) -> list[Message]:
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    assert failed == []
    return [message for answer in answers for message in answer]


class TaskQueueContract(
    SendClauses,
    ReceiptClauses,
    PriorityClauses,
    KeyClauses,
    DeadLetterClauses,
    WaitClauses,
    ManyReceiversClauses,
):
    """What holds for every queue."""


class TaskQueueSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_receivers_in_two_instances_never_get_one_message_twice(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            for number in range(self.rounds // 2):
                bodies = [f"{number}-{index}" for index in range(2 * CALLERS)]
                await send(first, *bodies)
                backends = [first, second] * (CALLERS // 2)

                answers = await gather_all(receive_now(backend, limit=3) for backend in backends)

                received = [m for answer in answers if isinstance(answer, list) for m in answer]
                assert sorted(message.body for message in received) == sorted(bodies)
                await second.require_queue().delete([message.receipt for message in received])

    @clause
    async def test_a_receipt_is_good_in_every_instance(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await send(first, "a", "b", "c")
            a, b, c = await receive_now(first, hidden_for=30 * SECOND)

            assert await second.require_queue().delete([a.receipt]) == []
            assert await second.require_queue().extend([b.receipt], hidden_for=60 * SECOND) == []
            await second.require_queue().delay(c.receipt, until=START + 90 * SECOND)

            clock.advance(30 * SECOND)
            assert await receive_now(first) == []

    @clause
    async def test_a_waiting_receive_sees_what_another_instance_sends(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            receive = second.require_queue().receive(
                ["default"], limit=1, hidden_for=30 * SECOND, wait=60 * SECOND
            )
            async with running(receive) as waiting:
                await send(first, "a")

                messages = await advance_until_done(waiting, clock, step=SECOND)

            assert [message.body for message in messages] == ["a"]

    @clause
    async def test_messages_are_there_after_a_restart(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as before:
            await send(before, "a", "b")
            await send(before, "later", visible_at=START + 60 * SECOND)
            (hidden,) = await receive_now(before, limit=1, hidden_for=30 * SECOND)

        async with open_backend() as again:
            assert await again.require_queue().depth("default") == QueueDepth(
                ready=1, hidden=2, dead_letters=0
            )
            clock.advance(60 * SECOND)
            messages = await receive_now(again)

        assert sorted(message.body for message in messages) == ["a", "b", "later"]
        assert {m.receive_count for m in messages if m.id == hidden.id} == {2}
