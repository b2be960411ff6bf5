"""The queue's clauses about sending, receiving, hiding and receipts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from longshore.core.queues import QueueDepth
from longshore.core.tasks.states import Priority
from longshore.errors import ReceiptExpired
from longshore.ports.backend import Backend
from longshore.ports.task_queue import OutgoingMessage
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import receive_now, send, was_sent_at
from longshore.testing.contracts.suite import START, TICK, PortContract, clause

HIDDEN = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


class SendClauses(PortContract):
    """``send`` and ``receive``."""

    @clause
    async def test_a_message_is_received_as_it_was_sent(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "ä 🚢 \n", queue="agents", priority=Priority.HIGH)
        clock.advance(SECOND)

        (message,) = await receive_now(backend, "agents")

        assert (message.queue, message.body) == ("agents", "ä 🚢 \n")
        assert message.priority is Priority.HIGH
        assert message.receive_count == 1
        assert was_sent_at(message, START)

    @clause
    async def test_a_batch_is_sent_whole(self, backend: Backend) -> None:
        bodies = [f"m{number}" for number in range(25)]

        refused = await backend.require_queue().send(
            [OutgoingMessage(queue="default", body=b) for b in bodies]
        )

        assert refused == []
        received = await receive_now(backend, limit=100)
        assert sorted(message.body for message in received) == sorted(bodies)
        assert len({message.id for message in received}) == 25

    @clause
    async def test_sending_nothing_is_no_mistake(self, backend: Backend) -> None:
        assert await backend.require_queue().send([]) == []

    @clause
    async def test_a_queue_without_messages_is_empty(self, backend: Backend) -> None:
        assert await receive_now(backend, "never") == []
        assert await backend.require_queue().depth("never") == QueueDepth(
            ready=0, hidden=0, dead_letters=0
        )
        assert await backend.require_queue().dead_letters("never", limit=10) == []

    @clause
    async def test_no_more_messages_come_than_the_limit(self, backend: Backend) -> None:
        await send(backend, *"abcde")

        sizes = [len(await receive_now(backend, limit=2)) for _ in range(4)]

        assert sizes == [2, 2, 1, 0]

    @clause
    async def test_the_limit_holds_over_all_queues_and_priorities(self, backend: Backend) -> None:
        for queue in ("a", "b"):
            for priority in Priority:
                await send(backend, "m", "m", queue=queue, priority=priority)

        sizes = [len(await receive_now(backend, "a", "b", limit=5)) for _ in range(4)]

        assert sizes == [5, 5, 2, 0]

    @clause
    async def test_only_the_requested_queues_are_read(self, backend: Backend) -> None:
        for queue in ("a", "b", "c"):
            await send(backend, f"in {queue}", queue=queue)

        received = await receive_now(backend, "a", "c", "none")

        assert sorted(message.body for message in received) == ["in a", "in c"]

    @clause
    async def test_a_message_is_seen_from_its_moment_on(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "later", visible_at=START + HIDDEN)

        clock.advance(HIDDEN - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert [message.body for message in await receive_now(backend)] == ["later"]

    @clause
    async def test_a_message_whose_moment_has_passed_is_seen_at_once(
        self, backend: Backend
    ) -> None:
        await send(backend, "late", visible_at=START - HIDDEN)

        assert [message.body for message in await receive_now(backend)] == ["late"]

    @clause
    async def test_the_depth_counts_ready_and_hidden(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a", "b", "c")
        await send(backend, "later", visible_at=START + 2 * HIDDEN)
        await send(backend, "elsewhere", queue="other")
        await receive_now(backend, limit=1, hidden_for=HIDDEN)

        assert await backend.require_queue().depth("default") == QueueDepth(
            ready=2, hidden=2, dead_letters=0
        )
        clock.advance(HIDDEN)
        assert await backend.require_queue().depth("default") == QueueDepth(
            ready=3, hidden=1, dead_letters=0
        )


class ReceiptClauses(PortContract):
    """``extend``, ``delete`` and ``delay``."""

    @clause
    async def test_a_received_message_is_hidden_for_its_time_and_not_longer(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (first,) = await receive_now(backend, hidden_for=HIDDEN)

        clock.advance(HIDDEN - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        (again,) = await receive_now(backend)

        assert (again.id, again.body, again.sent_at) == (first.id, first.body, first.sent_at)
        assert again.receipt != first.receipt

    @clause
    async def test_each_delivery_is_counted(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "a")

        counts = []
        for _ in range(4):
            counts += [
                message.receive_count for message in await receive_now(backend, hidden_for=HIDDEN)
            ]
            clock.advance(HIDDEN)

        assert counts == [1, 2, 3, 4]

    @clause
    async def test_extending_hides_from_now(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(10 * SECOND)

        stale = await backend.require_queue().extend([message.receipt], hidden_for=HIDDEN)

        assert stale == []
        clock.advance(HIDDEN - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert len(await receive_now(backend)) == 1

    @clause
    async def test_extending_can_shorten(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)

        await backend.require_queue().extend([message.receipt], hidden_for=SECOND)

        clock.advance(SECOND - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert len(await receive_now(backend)) == 1

    @clause
    async def test_extending_keeps_the_receipt_and_is_no_delivery(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)

        for _ in range(5):
            assert await backend.require_queue().extend([message.receipt], hidden_for=HIDDEN) == []

        clock.advance(HIDDEN)
        assert [again.receive_count for again in await receive_now(backend)] == [2]

    @clause
    async def test_a_deleted_message_never_comes_again(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)

        stale = await backend.require_queue().delete([message.receipt])

        assert stale == []
        clock.advance(2 * HIDDEN)
        assert await receive_now(backend) == []
        assert await backend.require_queue().depth("default") == QueueDepth(
            ready=0, hidden=0, dead_letters=0
        )

    @clause
    async def test_a_receipt_is_current_until_the_next_delivery(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a", "b")
        first, second = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(2 * HIDDEN)

        assert await backend.require_queue().delete([first.receipt]) == []
        assert await backend.require_queue().extend([second.receipt], hidden_for=HIDDEN) == []
        assert await receive_now(backend) == []

    @clause
    async def test_an_old_receipt_extends_nothing(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "a")
        (old,) = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(HIDDEN)
        await receive_now(backend, hidden_for=HIDDEN)

        stale = await backend.require_queue().extend([old.receipt], hidden_for=10 * HIDDEN)

        assert stale == [old.receipt]
        clock.advance(HIDDEN)
        assert len(await receive_now(backend)) == 1

    @clause
    async def test_an_old_receipt_deletes_nothing(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "a")
        (old,) = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(HIDDEN)
        (current,) = await receive_now(backend, hidden_for=HIDDEN)

        stale = await backend.require_queue().delete([old.receipt])

        assert stale == [old.receipt]
        assert await backend.require_queue().delete([current.receipt]) == []

    @clause
    async def test_an_old_receipt_puts_nothing_off(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (old,) = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(HIDDEN)
        await receive_now(backend, hidden_for=HIDDEN)

        with pytest.raises(ReceiptExpired):
            await backend.require_queue().delay(old.receipt, until=clock.now())

        assert await receive_now(backend) == []

    @clause
    async def test_the_receipt_of_a_deleted_message_is_not_current(self, backend: Backend) -> None:
        await send(backend, "a")
        (gone,) = await receive_now(backend)
        await backend.require_queue().delete([gone.receipt])

        assert await backend.require_queue().delete([gone.receipt]) == [gone.receipt]
        assert await backend.require_queue().extend([gone.receipt], hidden_for=HIDDEN) == [
            gone.receipt
        ]
        with pytest.raises(ReceiptExpired):
            await backend.require_queue().delay(gone.receipt, until=START)

    @clause
    async def test_text_that_is_no_receipt_is_not_current(self, backend: Backend) -> None:
        nonsense = ["", "nonsense", "1", "1.2", "-1", "ä", "1;2", "²"]

        assert await backend.require_queue().delete(nonsense) == nonsense
        assert await backend.require_queue().extend(nonsense, hidden_for=HIDDEN) == nonsense
        with pytest.raises(ReceiptExpired):
            await backend.require_queue().delay("nonsense", until=START)

    @clause
    async def test_a_batch_answers_for_each_receipt(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a", "b", "c")
        a, b, c = await receive_now(backend, hidden_for=HIDDEN)
        await backend.require_queue().delete([b.receipt])

        extended = await backend.require_queue().extend(
            [a.receipt, b.receipt, c.receipt], hidden_for=2 * HIDDEN
        )
        deleted = await backend.require_queue().delete([b.receipt, a.receipt, c.receipt])

        assert (extended, deleted) == ([b.receipt], [b.receipt])
        clock.advance(2 * HIDDEN)
        assert await receive_now(backend) == []

    @clause
    async def test_a_message_that_was_put_off_comes_again_at_its_time(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)

        await backend.require_queue().delay(message.receipt, until=START + 3 * HIDDEN)

        clock.advance(3 * HIDDEN - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert [again.body for again in await receive_now(backend)] == ["a"]

    @clause
    async def test_a_message_can_be_given_back_at_once(self, backend: Backend) -> None:
        await send(backend, "a")
        (message,) = await receive_now(backend, hidden_for=HIDDEN)

        await backend.require_queue().delay(message.receipt, until=START)

        assert len(await receive_now(backend)) == 1

    @clause
    async def test_a_delivery_that_was_put_off_does_not_count(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        (first,) = await receive_now(backend, hidden_for=HIDDEN)
        await backend.require_queue().delay(first.receipt, until=START)

        (second,) = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(HIDDEN)
        (third,) = await receive_now(backend)

        assert (first.receive_count, second.receive_count, third.receive_count) == (1, 1, 2)
