"""The queue's clauses about who comes first, messages of one key, and dead letters."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest

from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.tasks.states import Priority
from longshore.errors import ReceiptExpired
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import drain, receive_now, send, was_sent_at
from longshore.testing.contracts.suite import START, TICK, PortContract, clause

HIDDEN = timedelta(seconds=30)
SECOND = timedelta(seconds=1)


class PriorityClauses(PortContract):
    """Priorities, age, and fairness."""

    @clause
    async def test_older_messages_come_first(self, backend: Backend, clock: FakeClock) -> None:
        for number in range(10):
            await send(backend, f"m{number}")
            clock.advance(TICK)

        bodies = [message.body for message in await receive_now(backend, limit=4)]
        bodies += [message.body for message in await receive_now(backend, limit=10)]

        assert bodies == [f"m{number}" for number in range(10)]

    @clause
    async def test_most_receives_give_the_higher_priorities_first(self, backend: Backend) -> None:
        orders: Counter[tuple[Priority, ...]] = Counter()
        for _ in range(32):
            for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
                await send(backend, "m", priority=priority)

            messages = await receive_now(backend, limit=3)

            orders[tuple(message.priority for message in messages)] += 1
            await backend.require_queue().delete([message.receipt for message in messages])

        assert orders[Priority.HIGH, Priority.NORMAL, Priority.LOW] > 16

    @pytest.mark.parametrize("starving", [Priority.NORMAL, Priority.LOW])
    @clause
    async def test_no_priority_starves_behind_the_others(
        self, backend: Backend, starving: Priority
    ) -> None:
        for priority in Priority:
            await send(backend, *(["m"] * 64), priority=priority)

        received = [message for _ in range(64) for message in await receive_now(backend, limit=1)]

        assert len(received) == 64
        assert starving in {message.priority for message in received}

    @clause
    async def test_no_queue_starves_behind_another(self, backend: Backend) -> None:
        await send(backend, *(["m"] * 8), queue="a")
        await send(backend, "m", queue="b")

        received = []
        for _ in range(64):
            await send(backend, "m", queue="a")
            received += await receive_now(backend, "a", "b", limit=1)

        assert {message.queue for message in received} == {"a", "b"}


class KeyClauses(PortContract):
    """Messages of one queue and key."""

    @clause
    async def test_two_messages_of_one_key_come_once_or_twice(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "look", merge_key="t1")
        await send(backend, "look", merge_key="t1")

        bodies = await drain(backend)

        assert bodies in (["look"], ["look", "look"])
        clock.advance(timedelta(hours=1))
        assert await drain(backend) == []

    @pytest.mark.parametrize("moments", [(60, 10), (10, 60)], ids=["later first", "earlier first"])
    @clause
    async def test_messages_of_one_key_are_seen_at_the_earlier_moment(
        self, backend: Backend, clock: FakeClock, moments: tuple[int, int]
    ) -> None:
        for seconds in moments:
            await send(backend, "look", merge_key="t1", visible_at=START + seconds * SECOND)

        clock.advance(10 * SECOND - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert [message.body for message in await receive_now(backend)] == ["look"]

    @clause
    async def test_messages_of_two_keys_or_queues_stay_two(self, backend: Backend) -> None:
        await send(backend, "a", merge_key="t1")
        await send(backend, "b", merge_key="t2")
        await send(backend, "c", merge_key="t1", queue="other")
        await send(backend, "d", "e")

        assert sorted(await drain(backend)) == ["a", "b", "d", "e"]
        assert await drain(backend, "other") == ["c"]

    @clause
    async def test_a_message_sent_during_the_work_is_not_lost_with_the_old_one(
        self, backend: Backend
    ) -> None:
        await send(backend, "look", merge_key="t1")
        (working_on,) = await receive_now(backend, hidden_for=HIDDEN)
        await send(backend, "look", merge_key="t1")

        await backend.require_queue().delete([working_on.receipt])

        assert await drain(backend) == ["look"]

    @clause
    async def test_a_delayed_message_sent_during_the_work_is_received_at_its_time(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "look", merge_key="t1")
        (working_on,) = await receive_now(backend, hidden_for=HIDDEN)
        await send(backend, "look", merge_key="t1", visible_at=START + 90 * SECOND)

        await backend.require_queue().delete([working_on.receipt])

        clock.advance(90 * SECOND - TICK)
        assert await receive_now(backend) == []
        clock.advance(TICK)
        assert await drain(backend) == ["look"]

    @clause
    async def test_a_message_sent_during_the_work_is_not_delayed_with_the_old_one(
        self, backend: Backend
    ) -> None:
        await send(backend, "look", merge_key="t1")
        (working_on,) = await receive_now(backend, hidden_for=HIDDEN)
        await send(backend, "look", merge_key="t1")

        with suppress(ReceiptExpired):
            await backend.require_queue().delay(working_on.receipt, until=START + HIDDEN)

        assert len(await receive_now(backend)) >= 1

    @clause
    async def test_a_message_sent_after_the_hidden_time_is_not_lost_with_the_old_one(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "look", merge_key="t1")
        (slow,) = await receive_now(backend, hidden_for=HIDDEN)
        clock.advance(2 * HIDDEN)
        await send(backend, "look", merge_key="t1")

        await backend.require_queue().delete([slow.receipt])

        assert await drain(backend) == ["look"]

    @clause
    async def test_a_key_can_be_used_again_after_its_message_is_gone(
        self, backend: Backend
    ) -> None:
        for _ in range(3):
            await send(backend, "look", merge_key="t1")

            assert await drain(backend) == ["look"]


class DeadLetterClauses(PortContract):
    """``dead_letters`` and ``delete_dead_letter``."""

    @clause
    async def test_a_message_is_delivered_up_to_the_limit_and_then_a_dead_letter(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "poison")

        counts = await _exhaust_receives(backend, clock)

        assert counts == list(range(1, RECEIVE_LIMIT + 1))
        assert await receive_now(backend) == []
        (dead,) = await backend.require_queue().dead_letters("default", limit=10)
        assert (dead.queue, dead.body) == ("default", "poison")
        assert was_sent_at(dead, START)
        assert dead.receive_count >= RECEIVE_LIMIT

    @clause
    async def test_a_dead_letter_does_not_block_another_message(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "poison")
        await _exhaust_receives(backend, clock)
        await send(backend, "healthy")

        assert [message.body for message in await receive_now(backend, limit=1)] == ["healthy"]

    @clause
    async def test_dead_letters_are_counted_apart(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "poison")
        await _exhaust_receives(backend, clock)
        await receive_now(backend)

        depth = await backend.require_queue().depth("default")

        assert (depth.ready, depth.hidden, depth.dead_letters) == (0, 0, 1)

    @clause
    async def test_dead_letters_of_a_queue_come_oldest_first_up_to_the_limit(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        for body in ("a", "b", "c"):
            await send(backend, body)
            clock.advance(TICK)
        await send(backend, "elsewhere", queue="other")
        await _exhaust_receives(backend, clock)
        await receive_now(backend)

        dead = await backend.require_queue().dead_letters("default", limit=2)

        assert [message.body for message in dead] == ["a", "b"]
        assert await backend.require_queue().dead_letters("other", limit=2) == []

    @clause
    async def test_dead_letters_of_every_queue_come_together(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "a")
        await _exhaust_receives(backend, clock)
        await receive_now(backend)
        await send(backend, "b", queue="other")
        await _exhaust_receives(backend, clock, "other")
        await receive_now(backend, "other")

        dead = await backend.require_queue().dead_letters(None, limit=10)

        assert [(message.queue, message.body) for message in dead] == [
            ("default", "a"),
            ("other", "b"),
        ]
        assert await backend.require_queue().dead_letters(None, limit=1) == dead[:1]

    @clause
    async def test_a_dead_letter_has_the_time_its_key_was_last_enqueued(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "look", merge_key="t1")
        clock.advance(SECOND)
        await send(backend, "look", merge_key="t1")
        await _exhaust_receives(backend, clock)
        await receive_now(backend)

        dead = await backend.require_queue().dead_letters("default", limit=10)

        assert was_sent_at(max(dead, key=lambda message: message.sent_at), START + SECOND)

    @clause
    async def test_reading_dead_letters_does_not_remove_them(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await send(backend, "poison")
        await _exhaust_receives(backend, clock)
        await receive_now(backend)

        first = await backend.require_queue().dead_letters("default", limit=10)

        assert len(first) == 1
        assert await backend.require_queue().dead_letters("default", limit=10) == first

    @clause
    async def test_a_dead_letter_is_dropped_once(self, backend: Backend, clock: FakeClock) -> None:
        await send(backend, "poison", "other")
        await _exhaust_receives(backend, clock)
        await receive_now(backend)
        first, second = await backend.require_queue().dead_letters("default", limit=10)

        dropped = [await backend.require_queue().delete_dead_letter(first.id) for _ in range(2)]

        assert dropped == [True, False]
        assert await backend.require_queue().dead_letters("default", limit=10) == [second]
        assert await backend.require_queue().delete_dead_letter("nonsense") is False

    @clause
    async def test_a_live_message_is_no_dead_letter(self, backend: Backend) -> None:
        await send(backend, "healthy")
        (message,) = await receive_now(backend)

        assert await backend.require_queue().delete_dead_letter(message.id) is False
        assert await backend.require_queue().delete([message.receipt]) == []

    @clause
    async def test_a_message_that_is_only_delayed_never_becomes_a_dead_letter(
        self, backend: Backend
    ) -> None:
        await send(backend, "patient")

        for _ in range(2 * RECEIVE_LIMIT):
            (message,) = await receive_now(backend)
            await backend.require_queue().delay(message.receipt, until=START)

        assert len(await receive_now(backend)) == 1


async def _exhaust_receives(backend: Backend, clock: FakeClock, *queues: str) -> list[int]:
    """Receive what is there as often as may be, without ever deleting it."""
    counts = []
    for _ in range(RECEIVE_LIMIT):
        counts += [
            message.receive_count
            for message in await receive_now(backend, *queues, hidden_for=HIDDEN)
        ]
        clock.advance(HIDDEN)
    return counts
