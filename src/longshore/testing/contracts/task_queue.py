"""The contract of the ``TaskQueue``; its clauses stand by subject in the modules beside this."""

from __future__ import annotations

from datetime import timedelta

from longshore.core.queues import QueueDepth
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.queue_deliveries import ReceiptClauses, SendClauses
from longshore.testing.contracts.queue_order import DeadLetterClauses, KeyClauses, OrderClauses
from longshore.testing.contracts.queue_waits import ManyReceiversClauses, WaitClauses
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

                answers = await gather_all(receive_now(backend, limit=3) for backend in backends)

                received = [m for answer in answers if isinstance(answer, list) for m in answer]
                assert sorted(message.body for message in received) == sorted(bodies)
                await second.queue.delete([message.receipt for message in received])

    @clause
    async def test_a_receipt_is_good_in_every_instance(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            await send(first, "a", "b", "c")
            a, b, c = await receive_now(first, hidden_for=30 * SECOND)

            assert await second.queue.delete([a.receipt]) == []
            assert await second.queue.extend([b.receipt], hidden_for=60 * SECOND) == []
            await second.queue.delay(c.receipt, until=START + 90 * SECOND)

            clock.advance(30 * SECOND)
            assert await receive_now(first) == []

    @clause
    async def test_a_waiting_receive_sees_what_another_instance_sends(
        self, open_backend: Opener, clock: FakeClock
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            receive = second.queue.receive(
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
            assert await again.queue.depth("default") == QueueDepth(
                ready=1, hidden=2, dead_letters=0
            )
            clock.advance(60 * SECOND)
            messages = await receive_now(again)

        assert sorted(message.body for message in messages) == ["a", "b", "later"]
        assert {m.receive_count for m in messages if m.id == hidden.id} == {2}
