"""The contract of the ``Queues``."""

from __future__ import annotations

from datetime import timedelta

import pytest

from longshore.core.queues import QueuePause
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import drain, send
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
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
        held = await backend.queue_controls.pause("a", by="ann@例え", reason=reason, now=START)

        assert held == QueuePause(name="a", by="ann@例え", reason=reason, at=START)
        assert await backend.queue_controls.list_pauses() == [held]
        assert await backend.queue_controls.paused_queues(["a"]) == {"a"}

    @clause
    async def test_pauses_are_listed_by_the_name_of_the_queue(self, backend: Backend) -> None:
        held = {name: await _paused(backend, name) for name in ("b", "c", "a", "B")}

        assert await backend.queue_controls.list_pauses() == [
            held[name] for name in ("B", "a", "b", "c")
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
        held, other = await _paused(backend, "a"), await _paused(backend, "b")

        assert await backend.queue_controls.resume("a") == held

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

        held = await backend.queue_controls.pause("a", by="bob", reason="a fire", now=LATER)

        assert held == QueuePause(name="a", by="bob", reason="a fire", at=LATER)
        assert await backend.queue_controls.list_pauses() == [held]

    @clause
    async def test_a_paused_queue_takes_messages_and_loses_none(self, backend: Backend) -> None:
        await send(backend, "before", queue="a")
        await _paused(backend, "a")
        await send(backend, "after", queue="a")

        await backend.queue_controls.resume("a")

        assert await drain(backend, "a") == ["before", "after"]

    @clause
    async def test_a_stale_reader_is_answered_at_once(self, backend: Backend) -> None:
        await _paused(backend, "a")

        for known in ((), ["b"], ["a", "b"], ("c",)):
            found = await without_time_passing(
                backend.queue_controls.paused_queues(["a", "b"], changed_from=known)
            )
            assert found == {"a"}, known

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

            (held,) = [
                one for one in await backend.queue_controls.list_pauses() if one.name == name
            ]
            assert answers == [held] * CALLERS

    @clause
    async def test_of_many_who_resume_one_queue_one_gets_the_pause(self, backend: Backend) -> None:
        for number in range(self.rounds // 5):
            held = await _paused(backend, f"q{number}")

            answers = await gather_all(
                backend.queue_controls.resume(held.name) for _ in range(CALLERS)
            )

            assert answers.count(held) == 1
            assert answers.count(None) == CALLERS - 1

    @clause
    async def test_a_pause_and_a_resume_at_once_end_as_the_answers_say(
        self, backend: Backend
    ) -> None:
        for number in range(self.rounds // 5):
            held = await _paused(backend, f"q{number}")

            again, ended = await gather_all(
                call
                for call in (
                    backend.queue_controls.pause(held.name, by="bob", now=LATER),
                    backend.queue_controls.resume(held.name),
                )
            )

            # Resumed first, it is paused anew; else the pause was there already and is over.
            assert ended == held
            left = [] if again == held else [again]
            assert [
                one for one in await backend.queue_controls.list_pauses() if one.name == held.name
            ] == left


class QueueControlsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_pause_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            held = await _paused(first, "a")

            assert await second.queue_controls.list_pauses() == [held]
            assert await second.queue_controls.paused_queues(["a"]) == {"a"}
            assert await _paused(second, "a") == held

        async with open_backend() as again:
            assert await again.queue_controls.list_pauses() == [held]
            assert await again.queue_controls.resume("a") == held

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
