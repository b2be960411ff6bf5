"""The contract of the ``QueueControls``: pauses, and holds that end by themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from longshore.core.queues import MAX_HOLD, QueuePause
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import drain, send
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    TICK,
    Opener,
    PortContract,
    clause,
    gather_all,
    running,
    settle,
    without_time_passing,
)

LATER = START + timedelta(days=1)
NONE: frozenset[str] = frozenset()
BOTH = frozenset({"a", "b"})
MINUTE = timedelta(minutes=1)
REASON = "the «Füße» service\nasks to wait"


class QueueControlsContract(PortContract):
    """What holds for every store of pauses."""

    @clause
    async def test_no_queue_is_paused_at_first(self, backend: Backend) -> None:
        assert await backend.queue_controls.list_pauses() == []
        assert await backend.queue_controls.paused_queues(["a", "b"]) == NONE
        assert await backend.queue_controls.paused_queues([]) == NONE

    @pytest.mark.parametrize("reason", ["the «Füße» service is down\nsince noon", "", None])
    @clause
    async def test_who_paused_a_queue_when_and_why_is_kept(
        self, backend: Backend, reason: str | None
    ) -> None:
        pause = await backend.queue_controls.pause("a", by="ann@例え", reason=reason, now=START)

        assert pause == QueuePause(name="a", by="ann@例え", reason=reason, at=START)
        assert await backend.queue_controls.list_pauses() == [pause]
        assert await backend.queue_controls.paused_queues(["a"]) == {"a"}

    @clause
    async def test_pauses_are_listed_by_the_name_of_the_queue(self, backend: Backend) -> None:
        pause = {name: await _paused(backend, name) for name in ("b", "c", "a", "B")}

        assert await backend.queue_controls.list_pauses() == [
            pause[name] for name in ("B", "a", "b", "c")
        ]

    @clause
    async def test_a_pause_is_of_one_queue_only(self, backend: Backend) -> None:
        await _paused(backend, "a")

        assert await backend.queue_controls.paused_queues(["A", "a", "a.b", "aa", "b", ""]) == {"a"}
        assert await backend.queue_controls.paused_queues(["b"]) == NONE

    @clause
    async def test_of_two_pauses_the_first_counts(self, backend: Backend) -> None:
        first = await backend.queue_controls.pause("a", by="ann", reason="a flood", now=START)

        second = await backend.queue_controls.pause("a", by="bob", reason="a fire", now=LATER)

        assert second == first
        assert await backend.queue_controls.list_pauses() == [first]

    @clause
    async def test_a_repeated_pause_is_the_same(self, backend: Backend) -> None:
        first = await _paused(backend, "a")

        assert await _paused(backend, "a") == first
        await backend.queue_controls.resume("a")
        assert await backend.queue_controls.list_pauses() == []

    @clause
    async def test_resume_returns_the_pause_that_ended(self, backend: Backend) -> None:
        pause, other = await _paused(backend, "a"), await _paused(backend, "b")

        assert await backend.queue_controls.resume("a") == pause

        assert await backend.queue_controls.list_pauses() == [other]
        assert await backend.queue_controls.paused_queues(["a", "b"]) == {"b"}

    @clause
    async def test_a_queue_that_is_not_paused_cannot_be_resumed(self, backend: Backend) -> None:
        other = await _paused(backend, "b")
        assert await backend.queue_controls.resume("a") is None
        await _paused(backend, "a")
        await backend.queue_controls.resume("a")

        assert await backend.queue_controls.resume("a") is None
        assert await backend.queue_controls.list_pauses() == [other]

    @clause
    async def test_a_queue_that_was_resumed_can_be_paused_for_another_reason(
        self, backend: Backend
    ) -> None:
        await _paused(backend, "a")
        await backend.queue_controls.resume("a")

        pause = await backend.queue_controls.pause("a", by="bob", reason="a fire", now=LATER)

        assert pause == QueuePause(name="a", by="bob", reason="a fire", at=LATER)
        assert await backend.queue_controls.list_pauses() == [pause]

    @clause
    async def test_a_stale_reader_is_answered_at_once(self, backend: Backend) -> None:
        await _paused(backend, "a")

        for names in ((), ["b"], ["a", "b"], ("c",)):
            paused = await without_time_passing(
                backend.queue_controls.paused_queues(["a", "b"], changed_from=names)
            )
            assert paused == {"a"}, names

    @clause
    async def test_a_waiter_is_notified_of_a_pause_and_of_its_end(self, backend: Backend) -> None:
        queues = backend.queue_controls
        async with running(queues.paused_queues(["a", "b"], changed_from=NONE)) as waiting:
            assert not waiting.done()
            await _paused(backend, "b")
            assert await without_time_passing(waiting) == {"b"}

        async with running(queues.paused_queues(["a", "b"], changed_from={"b"})) as waiting:
            assert not waiting.done()
            await _paused(backend, "a")
            assert await without_time_passing(waiting) == BOTH

        async with running(queues.paused_queues(["a", "b"], changed_from=BOTH)) as waiting:
            assert not waiting.done()
            await queues.resume("b")
            assert await without_time_passing(waiting) == {"a"}

        async with running(queues.paused_queues(["a", "b"], changed_from=["a"])) as waiting:
            await queues.resume("a")
            assert await without_time_passing(waiting) == NONE

    @clause
    async def test_a_waiter_is_not_notified_of_other_queues_or_of_nothing_new(
        self, backend: Backend
    ) -> None:
        await _paused(backend, "a")
        async with running(
            backend.queue_controls.paused_queues(["a", "b"], changed_from=["a"])
        ) as waiting:
            await _paused(backend, "c")
            await _paused(backend, "a")
            await backend.queue_controls.resume("b")
            await settle()

            assert not waiting.done()

    @clause
    async def test_every_waiter_is_notified(self, backend: Backend) -> None:
        async with (
            running(backend.queue_controls.paused_queues(["a"], changed_from=NONE)) as first,
            running(backend.queue_controls.paused_queues(["b", "a"], changed_from=NONE)) as second,
        ):
            await _paused(backend, "a")

            assert await without_time_passing(first) == await without_time_passing(second) == {"a"}

    @clause
    async def test_of_many_who_pause_one_queue_all_get_the_same_pause(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            name = f"q{number}"

            answers = await gather_all(
                backend.queue_controls.pause(name, by=f"caller {caller}", now=START)
                for caller in range(CALLERS)
            )

            (pause,) = [
                pause_listed
                for pause_listed in await backend.queue_controls.list_pauses()
                if pause_listed.name == name
            ]
            assert answers == [pause] * CALLERS

    @clause
    async def test_of_many_who_resume_one_queue_one_gets_the_pause(self, backend: Backend) -> None:
        for number in range(self.rounds // 5):
            pause = await _paused(backend, f"q{number}")

            answers = await gather_all(
                backend.queue_controls.resume(pause.name) for _ in range(CALLERS)
            )

            assert answers.count(pause) == 1
            assert answers.count(None) == CALLERS - 1

    @clause
    async def test_a_pause_and_a_resume_at_once_end_as_the_answers_say(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            pause = await _paused(backend, f"q{number}")

            again, ended = await gather_all(
                call
                for call in (
                    backend.queue_controls.pause(pause.name, by="bob", now=LATER),
                    backend.queue_controls.resume(pause.name),
                )
            )

            # Resumed first, it is paused anew; else the pause was there already and is over.
            assert ended == pause
            left = [] if again == pause else [again]
            assert [
                pause_listed
                for pause_listed in await backend.queue_controls.list_pauses()
                if pause_listed.name == pause.name
            ] == left


class QueuedControlsContract(PortContract):
    """Pauses on a backend whose workers receive messages."""

    @clause
    async def test_a_paused_queue_takes_messages_and_loses_none(self, backend: Backend) -> None:
        await send(backend, "before", queue="a")
        await _paused(backend, "a")
        await send(backend, "after", queue="a")

        await backend.queue_controls.resume("a")

        assert await drain(backend, "a") == ["before", "after"]


class QueueControlsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_pause_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            pause = await _paused(first, "a")

            assert await second.queue_controls.list_pauses() == [pause]
            assert await second.queue_controls.paused_queues(["a"]) == {"a"}
            assert await _paused(second, "a") == pause

        async with open_backend() as again:
            assert await again.queue_controls.list_pauses() == [pause]
            assert await again.queue_controls.resume("a") == pause

        async with open_backend() as again:
            assert await again.queue_controls.list_pauses() == []

    @clause
    async def test_a_waiter_in_another_instance_is_notified_at_once(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            async with running(
                second.queue_controls.paused_queues(["a"], changed_from=NONE)
            ) as waiting:
                await _paused(first, "a")
                assert await without_time_passing(waiting) == {"a"}

            async with running(
                second.queue_controls.paused_queues(["a"], changed_from={"a"})
            ) as waiting:
                await first.queue_controls.resume("a")
                assert await without_time_passing(waiting) == NONE


async def _paused(backend: Backend, name: str) -> QueuePause:
    return await backend.queue_controls.pause(name, by="ann", reason="a flood", now=START)


class QueueHoldsContract(PortContract):
    """What holds for every store of holds."""

    @clause
    async def test_who_held_a_queue_since_when_until_when_and_why_is_kept(
        self, backend: Backend
    ) -> None:
        pause = await _hold(backend, "a")

        assert pause == QueuePause(
            name="a", by="worker-1", reason=REASON, at=START, until=START + MINUTE
        )
        assert await backend.queue_controls.list_pauses() == [pause]
        assert await backend.queue_controls.paused_queues(["a", "A", "aa", "b"]) == {"a"}

    @clause
    async def test_a_hold_is_over_at_its_moment_and_then_is_nothing(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        pause = await _hold(backend, "a")
        clock.advance(MINUTE - TICK)
        assert await backend.queue_controls.list_pauses() == [pause]
        assert await backend.queue_controls.paused_queues(["a"]) == {"a"}

        clock.advance(TICK)

        assert await backend.queue_controls.list_pauses() == []
        assert await backend.queue_controls.paused_queues(["a"]) == NONE
        assert await backend.queue_controls.resume("a") is None

    @clause
    async def test_of_two_holds_the_one_that_lasts_longer_counts(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        first = await _hold(backend, "a", lasts=2 * MINUTE)

        for lasts in (MINUTE, 2 * MINUTE):
            assert await _hold(backend, "a", lasts=lasts, by="worker-2") == first
        assert await backend.queue_controls.list_pauses() == [first]

        longer = await _hold(backend, "a", lasts=3 * MINUTE, by="worker-3")
        assert (longer.by, longer.until) == ("worker-3", START + 3 * MINUTE)
        assert await backend.queue_controls.list_pauses() == [longer]
        clock.advance(2 * MINUTE)
        assert await backend.queue_controls.paused_queues(["a"]) == {"a"}

    @clause
    async def test_a_queue_whose_hold_is_over_is_held_anew(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _hold(backend, "a")
        clock.advance(2 * MINUTE)

        again = await backend.queue_controls.hold(
            "a", until=START + 3 * MINUTE, by="worker-2", reason="", now=clock.now()
        )

        assert again == QueuePause(
            name="a", by="worker-2", reason="", at=START + 2 * MINUTE, until=START + 3 * MINUTE
        )
        assert await backend.queue_controls.list_pauses() == [again]

    @clause
    async def test_no_hold_lasts_longer_than_the_longest(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        pause = await _hold(backend, "a", lasts=timedelta(days=365))

        assert pause.until == START + MAX_HOLD
        clock.advance(MAX_HOLD)
        assert await backend.queue_controls.paused_queues(["a"]) == NONE

    @clause
    async def test_a_hold_of_a_clock_that_was_far_ahead_is_nothing_and_gives_way(
        self, backend: Backend
    ) -> None:
        ahead = START + timedelta(days=1)
        await backend.queue_controls.hold(
            "a", until=ahead + MINUTE, by="w", reason=REASON, now=ahead
        )
        assert await backend.queue_controls.list_pauses() == []
        assert await backend.queue_controls.paused_queues(["a"]) == NONE
        assert await backend.queue_controls.resume("b") is None

        pause = await _hold(backend, "a")

        assert await backend.queue_controls.list_pauses() == [pause]

    @clause
    async def test_a_pause_and_a_hold_of_one_queue_stand_beside_each_other(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        pause = await _hold(backend, "a")
        paused = await backend.queue_controls.pause("a", by="ann", reason="a flood", now=START)
        other = await _hold(backend, "A")

        assert paused.until is None
        assert await backend.queue_controls.list_pauses() == [other, paused, pause]
        clock.advance(MINUTE)
        assert await backend.queue_controls.list_pauses() == [paused]
        assert await backend.queue_controls.paused_queues(["a", "A"]) == {"a"}

    @clause
    async def test_to_resume_a_queue_ends_its_pause_and_its_hold(self, backend: Backend) -> None:
        await _hold(backend, "a")
        paused = await backend.queue_controls.pause("a", by="ann", now=START)
        other = await _hold(backend, "b")

        assert await backend.queue_controls.resume("a") == paused

        assert await backend.queue_controls.list_pauses() == [other]
        assert await backend.queue_controls.resume("a") is None

    @clause
    async def test_a_queue_that_is_only_held_is_resumed_and_can_be_held_for_less(
        self, backend: Backend
    ) -> None:
        pause = await _hold(backend, "a", lasts=5 * MINUTE)

        assert await backend.queue_controls.resume("a") == pause
        assert await backend.queue_controls.list_pauses() == []
        assert await backend.queue_controls.resume("a") is None

        again = await _hold(backend, "a")
        assert again.until == START + MINUTE
        assert await backend.queue_controls.list_pauses() == [again]

    @clause
    async def test_a_waiter_is_notified_of_a_hold_and_of_its_expiry(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        queues = backend.queue_controls
        async with running(queues.paused_queues(["a", "b"], changed_from=NONE)) as waiting:
            assert not waiting.done()
            await _hold(backend, "b")
            assert await without_time_passing(waiting) == {"b"}

        async with running(queues.paused_queues(["a", "b"], changed_from={"b"})) as waiting:
            clock.advance(MINUTE - TICK)
            await settle()
            assert not waiting.done()
            clock.advance(TICK)
            assert await without_time_passing(waiting) == NONE

    @clause
    async def test_a_waiter_for_the_end_of_a_hold_is_notified_when_it_is_extended_or_resumed(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _hold(backend, "a")
        async with running(
            backend.queue_controls.paused_queues(["a"], changed_from={"a"})
        ) as waiting:
            await _hold(backend, "a", lasts=2 * MINUTE)
            clock.advance(MINUTE)
            await settle()
            assert not waiting.done()

            await backend.queue_controls.resume("a")
            assert await without_time_passing(waiting) == NONE

    @clause
    async def test_a_waiter_for_the_end_of_a_pause_is_not_notified_of_the_end_of_a_hold(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await _hold(backend, "a")
        await backend.queue_controls.pause("a", by="ann", now=START)
        async with running(
            backend.queue_controls.paused_queues(["a"], changed_from={"a"})
        ) as waiting:
            clock.advance(2 * MINUTE)
            await settle()

            assert not waiting.done()

    @clause
    async def test_of_many_who_hold_one_queue_the_longest_counts(self, backend: Backend) -> None:
        for number in range(self.rounds // 5):
            name = f"q{number}"

            await gather_all(
                _hold(backend, name, lasts=MINUTE * (1 + caller * 7 % CALLERS))
                for caller in range(CALLERS)
            )

            (pause,) = [
                pause_listed
                for pause_listed in await backend.queue_controls.list_pauses()
                if pause_listed.name == name
            ]
            assert pause.until == START + MINUTE * CALLERS

    @clause
    async def test_of_many_who_resume_one_held_queue_one_gets_the_hold(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            pause = await _hold(backend, f"q{number}")

            answers = await gather_all(
                backend.queue_controls.resume(pause.name) for _ in range(CALLERS)
            )

            assert answers.count(pause) == 1
            assert answers.count(None) == CALLERS - 1


class QueueHoldsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_hold_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            async with running(
                second.queue_controls.paused_queues(["a"], changed_from=NONE)
            ) as waiting:
                pause = await _hold(first, "a")
                assert await without_time_passing(waiting) == {"a"}
            assert await second.queue_controls.list_pauses() == [pause]

        async with open_backend() as again:
            assert await again.queue_controls.list_pauses() == [pause]
            assert await _hold(again, "a", lasts=MINUTE / 2) == pause
            assert await again.queue_controls.resume("a") == pause


async def _hold(
    backend: Backend, name: str, *, lasts: timedelta = MINUTE, by: str = "worker-1"
) -> QueuePause:
    return await backend.queue_controls.hold(
        name, until=START + lasts, by=by, reason=REASON, now=START
    )
