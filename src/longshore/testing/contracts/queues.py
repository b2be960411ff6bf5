"""The contract of the ``Queues``."""

from __future__ import annotations

from datetime import timedelta

import pytest

from longshore.ports.backend import Backend
from longshore.ports.queues import PausedQueue
from longshore.testing.contracts.samples import empty, send
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    at_once,
    clause,
    settle,
    soon,
    under_way,
)

LATER = START + timedelta(days=1)
NONE: frozenset[str] = frozenset()
BOTH = frozenset({"a", "b"})


class QueuesContract(PortContract):
    """What holds for every store of pauses."""

    @clause
    async def test_no_queue_is_paused_until_somebody_does(self, backend: Backend) -> None:
        assert await backend.queues.paused() == []
        assert await backend.queues.paused_of(["a", "b"]) == NONE
        assert await backend.queues.paused_of([]) == NONE

    @pytest.mark.parametrize("reason", ["the «Füße» service is down\nsince noon", "", None])
    @clause
    async def test_who_paused_a_queue_when_and_why_is_kept(
        self, backend: Backend, reason: str | None
    ) -> None:
        held = await backend.queues.pause("a", by="ann@例え", reason=reason, now=START)

        assert held == PausedQueue(name="a", by="ann@例え", reason=reason, at=START)
        assert await backend.queues.paused() == [held]
        assert await backend.queues.paused_of(["a"]) == {"a"}

    @clause
    async def test_pauses_are_listed_by_the_name_of_the_queue(self, backend: Backend) -> None:
        held = {name: await _paused(backend, name) for name in ("b", "c", "a", "B")}

        assert await backend.queues.paused() == [held[name] for name in ("B", "a", "b", "c")]

    @clause
    async def test_a_pause_is_of_one_queue_only(self, backend: Backend) -> None:
        await _paused(backend, "a")

        assert await backend.queues.paused_of(["A", "a", "a.b", "aa", "b", ""]) == {"a"}
        assert await backend.queues.paused_of(["b"]) == NONE

    @clause
    async def test_of_two_pauses_the_first_counts(self, backend: Backend) -> None:
        first = await backend.queues.pause("a", by="ann", reason="a flood", now=START)

        second = await backend.queues.pause("a", by="bob", reason="a fire", now=LATER)

        assert second == first
        assert await backend.queues.paused() == [first]

    @clause
    async def test_a_pause_that_is_asked_for_again_is_the_same(self, backend: Backend) -> None:
        first = await _paused(backend, "a")

        assert await _paused(backend, "a") == first
        await backend.queues.resume("a")
        assert await backend.queues.paused() == []

    @clause
    async def test_a_queue_is_resumed_and_the_pause_that_ended_is_told(
        self, backend: Backend
    ) -> None:
        held, other = await _paused(backend, "a"), await _paused(backend, "b")

        assert await backend.queues.resume("a") == held

        assert await backend.queues.paused() == [other]
        assert await backend.queues.paused_of(["a", "b"]) == {"b"}

    @clause
    async def test_a_queue_that_is_not_paused_cannot_be_resumed(self, backend: Backend) -> None:
        other = await _paused(backend, "b")
        assert await backend.queues.resume("a") is None
        await _paused(backend, "a")
        await backend.queues.resume("a")

        assert await backend.queues.resume("a") is None
        assert await backend.queues.paused() == [other]

    @clause
    async def test_a_queue_that_was_resumed_can_be_paused_for_another_reason(
        self, backend: Backend
    ) -> None:
        await _paused(backend, "a")
        await backend.queues.resume("a")

        held = await backend.queues.pause("a", by="bob", reason="a fire", now=LATER)

        assert held == PausedQueue(name="a", by="bob", reason="a fire", at=LATER)
        assert await backend.queues.paused() == [held]

    @clause
    async def test_a_paused_queue_takes_messages_and_loses_none(self, backend: Backend) -> None:
        await send(backend, "before", queue="a")
        await _paused(backend, "a")
        await send(backend, "after", queue="a")

        await backend.queues.resume("a")

        assert await empty(backend, "a") == ["before", "after"]

    @clause
    async def test_who_knows_something_else_is_told_at_once(self, backend: Backend) -> None:
        await _paused(backend, "a")

        for known in ((), ["b"], ["a", "b"], ("c",)):
            found = await soon(backend.queues.paused_of(["a", "b"], other_than=known))
            assert found == {"a"}, known

    @clause
    async def test_who_waits_is_told_of_a_pause_and_of_its_end(self, backend: Backend) -> None:
        queues = backend.queues
        async with under_way(queues.paused_of(["a", "b"], other_than=NONE)) as waiting:
            assert not waiting.done()
            await _paused(backend, "b")
            assert await soon(waiting) == {"b"}

        async with under_way(queues.paused_of(["a", "b"], other_than={"b"})) as waiting:
            assert not waiting.done()
            await _paused(backend, "a")
            assert await soon(waiting) == BOTH

        async with under_way(queues.paused_of(["a", "b"], other_than=BOTH)) as waiting:
            assert not waiting.done()
            await queues.resume("b")
            assert await soon(waiting) == {"a"}

        async with under_way(queues.paused_of(["a", "b"], other_than=["a"])) as waiting:
            await queues.resume("a")
            assert await soon(waiting) == NONE

    @clause
    async def test_who_waits_is_not_told_of_other_queues_or_of_nothing_new(
        self, backend: Backend
    ) -> None:
        await _paused(backend, "a")
        async with under_way(backend.queues.paused_of(["a", "b"], other_than=["a"])) as waiting:
            await _paused(backend, "c")
            await _paused(backend, "a")
            await backend.queues.resume("b")
            await settle()

            assert not waiting.done()

    @clause
    async def test_everybody_who_waits_is_told(self, backend: Backend) -> None:
        async with (
            under_way(backend.queues.paused_of(["a"], other_than=NONE)) as first,
            under_way(backend.queues.paused_of(["b", "a"], other_than=NONE)) as second,
        ):
            await _paused(backend, "a")

            assert await soon(first) == await soon(second) == {"a"}

    @clause
    async def test_of_many_who_pause_one_queue_all_are_told_of_the_same(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            name = f"q{number}"

            answers = await at_once(
                backend.queues.pause(name, by=f"caller {caller}", now=START)
                for caller in range(CALLERS)
            )

            (held,) = [one for one in await backend.queues.paused() if one.name == name]
            assert answers == [held] * CALLERS

    @clause
    async def test_of_many_who_resume_one_queue_one_is_told_that_it_did(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            held = await _paused(backend, f"q{number}")

            answers = await at_once(backend.queues.resume(held.name) for _ in range(CALLERS))

            assert answers.count(held) == 1
            assert answers.count(None) == CALLERS - 1

    @clause
    async def test_a_pause_and_a_resume_at_once_end_as_the_answers_say(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            held = await _paused(backend, f"q{number}")

            again, ended = await at_once(
                call
                for call in (
                    backend.queues.pause(held.name, by="bob", now=LATER),
                    backend.queues.resume(held.name),
                )
            )

            # Resumed first, it is paused anew; else the pause was there already and is over.
            assert ended == held
            left = [] if again == held else [again]
            assert [one for one in await backend.queues.paused() if one.name == held.name] == left


class QueuesSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_pause_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            held = await _paused(first, "a")

            assert await second.queues.paused() == [held]
            assert await second.queues.paused_of(["a"]) == {"a"}
            assert await _paused(second, "a") == held

        async with open_backend() as again:
            assert await again.queues.paused() == [held]
            assert await again.queues.resume("a") == held

        async with open_backend() as again:
            assert await again.queues.paused() == []

    @clause
    async def test_who_waits_in_another_instance_is_told_without_any_time_passing(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            async with under_way(second.queues.paused_of(["a"], other_than=NONE)) as waiting:
                await _paused(first, "a")
                assert await soon(waiting) == {"a"}

            async with under_way(second.queues.paused_of(["a"], other_than={"a"})) as waiting:
                await first.queues.resume("a")
                assert await soon(waiting) == NONE


async def _paused(backend: Backend, name: str) -> PausedQueue:
    return await backend.queues.pause(name, by="ann", reason="a flood", now=START)
