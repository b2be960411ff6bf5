"""The contract of the ``Queues``, as far as it is about holds: pauses that end by themselves."""

from __future__ import annotations

from datetime import timedelta

from longshore.ports.backend import Backend
from longshore.ports.queues import LONGEST_HOLD, PausedQueue
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    TICK,
    Opener,
    PortContract,
    at_once,
    clause,
    settle,
    soon,
    under_way,
)

NONE: frozenset[str] = frozenset()
MINUTE = timedelta(minutes=1)
WHY = "the «Füße» service\nasks to wait"


class HoldsContract(PortContract):
    """What holds for every store of holds."""

    @clause
    async def test_who_held_a_queue_since_when_until_when_and_why_is_kept(
        self, backend: Backend
    ) -> None:
        held = await _held(backend, "a")

        assert held == PausedQueue(
            name="a", by="worker-1", reason=WHY, at=START, until=START + MINUTE
        )
        assert await backend.queues.paused() == [held]
        assert await backend.queues.paused_of(["a", "A", "aa", "b"]) == {"a"}

    @clause
    async def test_a_hold_is_over_at_its_moment_and_then_is_nothing(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        held = await _held(backend, "a")
        clock.advance(MINUTE - TICK)
        assert await backend.queues.paused() == [held]
        assert await backend.queues.paused_of(["a"]) == {"a"}

        clock.advance(TICK)

        assert await backend.queues.paused() == []
        assert await backend.queues.paused_of(["a"]) == NONE
        assert await backend.queues.resume("a") is None

    @clause
    async def test_of_two_holds_the_one_that_lasts_longer_counts(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        first = await _held(backend, "a", lasts=2 * MINUTE)

        for lasts in (MINUTE, 2 * MINUTE):
            assert await _held(backend, "a", lasts=lasts, by="worker-2") == first
        assert await backend.queues.paused() == [first]

        longer = await _held(backend, "a", lasts=3 * MINUTE, by="worker-3")
        assert (longer.by, longer.until) == ("worker-3", START + 3 * MINUTE)
        assert await backend.queues.paused() == [longer]
        clock.advance(2 * MINUTE)
        assert await backend.queues.paused_of(["a"]) == {"a"}

    @clause
    async def test_a_queue_whose_hold_is_over_is_held_anew(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _held(backend, "a")
        clock.advance(2 * MINUTE)

        again = await backend.queues.hold(
            "a", until=START + 3 * MINUTE, by="worker-2", reason="", now=clock.now()
        )

        assert again == PausedQueue(
            name="a", by="worker-2", reason="", at=START + 2 * MINUTE, until=START + 3 * MINUTE
        )
        assert await backend.queues.paused() == [again]

    @clause
    async def test_no_hold_lasts_longer_than_the_longest(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        held = await _held(backend, "a", lasts=timedelta(days=365))

        assert held.until == START + LONGEST_HOLD
        clock.advance(LONGEST_HOLD)
        assert await backend.queues.paused_of(["a"]) == NONE

    @clause
    async def test_a_hold_of_a_clock_that_was_far_ahead_is_nothing_and_gives_way(
        self, backend: Backend
    ) -> None:
        ahead = START + timedelta(days=1)
        await backend.queues.hold("a", until=ahead + MINUTE, by="w", reason=WHY, now=ahead)
        assert await backend.queues.paused() == []
        assert await backend.queues.paused_of(["a"]) == NONE
        assert await backend.queues.resume("b") is None

        held = await _held(backend, "a")

        assert await backend.queues.paused() == [held]

    @clause
    async def test_a_pause_and_a_hold_of_one_queue_stand_beside_each_other(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        held = await _held(backend, "a")
        paused = await backend.queues.pause("a", by="ann", reason="a flood", now=START)
        other = await _held(backend, "A")

        assert paused.until is None
        assert await backend.queues.paused() == [other, paused, held]
        clock.advance(MINUTE)
        assert await backend.queues.paused() == [paused]
        assert await backend.queues.paused_of(["a", "A"]) == {"a"}

    @clause
    async def test_to_resume_a_queue_ends_its_pause_and_its_hold(self, backend: Backend) -> None:
        await _held(backend, "a")
        paused = await backend.queues.pause("a", by="ann", now=START)
        other = await _held(backend, "b")

        assert await backend.queues.resume("a") == paused

        assert await backend.queues.paused() == [other]
        assert await backend.queues.resume("a") is None

    @clause
    async def test_a_queue_that_is_only_held_is_resumed_and_can_be_held_for_less(
        self, backend: Backend
    ) -> None:
        held = await _held(backend, "a", lasts=5 * MINUTE)

        assert await backend.queues.resume("a") == held
        assert await backend.queues.paused() == []
        assert await backend.queues.resume("a") is None

        again = await _held(backend, "a")
        assert again.until == START + MINUTE
        assert await backend.queues.paused() == [again]

    @clause
    async def test_who_waits_is_told_of_a_hold_and_of_its_end_by_itself(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        queues = backend.queues
        async with under_way(queues.paused_of(["a", "b"], other_than=NONE)) as waiting:
            assert not waiting.done()
            await _held(backend, "b")
            assert await soon(waiting) == {"b"}

        async with under_way(queues.paused_of(["a", "b"], other_than={"b"})) as waiting:
            clock.advance(MINUTE - TICK)
            await settle()
            assert not waiting.done()
            clock.advance(TICK)
            assert await soon(waiting) == NONE

    @clause
    async def test_who_waits_for_the_end_of_a_hold_is_told_when_it_lasts_longer_or_is_resumed(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _held(backend, "a")
        async with under_way(backend.queues.paused_of(["a"], other_than={"a"})) as waiting:
            await _held(backend, "a", lasts=2 * MINUTE)
            clock.advance(MINUTE)
            await settle()
            assert not waiting.done()

            await backend.queues.resume("a")
            assert await soon(waiting) == NONE

    @clause
    async def test_who_waits_for_the_end_of_a_pause_is_not_told_of_that_of_a_hold(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _held(backend, "a")
        await backend.queues.pause("a", by="ann", now=START)
        async with under_way(backend.queues.paused_of(["a"], other_than={"a"})) as waiting:
            clock.advance(2 * MINUTE)
            await settle()

            assert not waiting.done()

    @clause
    async def test_of_many_who_hold_one_queue_the_longest_counts(self, backend: Backend) -> None:
        for number in range(self.rounds // 5):
            name = f"q{number}"

            await at_once(
                _held(backend, name, lasts=MINUTE * (1 + caller * 7 % CALLERS))
                for caller in range(CALLERS)
            )

            (held,) = [one for one in await backend.queues.paused() if one.name == name]
            assert held.until == START + MINUTE * CALLERS

    @clause
    async def test_of_many_who_resume_one_held_queue_one_is_told_that_it_did(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            held = await _held(backend, f"q{number}")

            answers = await at_once(backend.queues.resume(held.name) for _ in range(CALLERS))

            assert answers.count(held) == 1
            assert answers.count(None) == CALLERS - 1


class HoldsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_hold_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            async with under_way(second.queues.paused_of(["a"], other_than=NONE)) as waiting:
                held = await _held(first, "a")
                assert await soon(waiting) == {"a"}
            assert await second.queues.paused() == [held]

        async with open_backend() as again:
            assert await again.queues.paused() == [held]
            assert await _held(again, "a", lasts=MINUTE / 2) == held
            assert await again.queues.resume("a") == held


async def _held(
    backend: Backend, name: str, *, lasts: timedelta = MINUTE, by: str = "worker-1"
) -> PausedQueue:
    return await backend.queues.hold(name, until=START + lasts, by=by, reason=WHY, now=START)
