"""The contract of the ``TaskQueue``; its clauses stand by subject in the modules beside this."""

from __future__ import annotations

from datetime import timedelta

from longshore.ports.queue import Depth
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.queue_deliveries import ReceiptClauses, SendClauses
from longshore.testing.contracts.queue_order import DeadLetterClauses, KeyClauses, OrderClauses
from longshore.testing.contracts.queue_waiting import ManyReceiversClauses, WaitClauses
from longshore.testing.contracts.samples import send, take
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    at_once,
    clause,
    in_time,
    under_way,
)

SECOND = timedelta(seconds=1)


class TaskQueueContract(
    SendClauses,
    ReceiptClauses,
    OrderClauses,
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
                bodies = [f"{number}-{place}" for place in range(2 * CALLERS)]
                await send(first, *bodies)
                backends = [first, second] * (CALLERS // 2)

                answers = await at_once(take(backend, limit=3) for backend in backends)

                received = [m for answer in answers if isinstance(answer, list) for m in answer]
                assert sorted(message.body for message in received) == sorted(bodies)
                await second.queue.delete([message.receipt for message in received])

    @clause
    async def test_a_receipt_is_good_in_every_instance(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await send(first, "a", "b", "c")
            a, b, c = await take(first, hidden_for=30 * SECOND)

            assert await second.queue.delete([a.receipt]) == []
            assert await second.queue.extend([b.receipt], hidden_for=60 * SECOND) == []
            await second.queue.put_off(c.receipt, until=START + 90 * SECOND)

            clock.advance(30 * SECOND)
            assert await take(first) == []

    @clause
    async def test_a_waiting_receive_sees_what_another_instance_sends(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            receive = second.queue.receive(
                ["default"], limit=1, hidden_for=30 * SECOND, wait=60 * SECOND
            )
            async with under_way(receive) as waiting:
                await send(first, "a")

                messages = await in_time(waiting, clock, step=SECOND)

            assert [message.body for message in messages] == ["a"]

    @clause
    async def test_messages_are_there_after_a_restart(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as before:
            await send(before, "a", "b")
            await send(before, "later", visible_at=START + 60 * SECOND)
            (hidden,) = await take(before, limit=1, hidden_for=30 * SECOND)

        async with open_backend() as again:
            assert await again.queue.depth("default") == Depth(ready=1, hidden=2, dead=0)
            clock.advance(60 * SECOND)
            messages = await take(again)

        assert sorted(message.body for message in messages) == ["a", "b", "later"]
        assert {m.receives for m in messages if m.id == hidden.id} == {2}
