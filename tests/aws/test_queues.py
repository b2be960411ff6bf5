"""Pauses in DynamoDB held to their contract, and what DynamoDB does besides."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.aws.calls import Answer, Aws
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.queues import DynamoQueues
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.ports.queues import PausedQueue
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.holds import HoldsContract, HoldsSharedContract
from longshore.testing.contracts.queues import QueuesContract, QueuesSharedContract
from longshore.testing.contracts.suite import START, Opener, clause, settle, soon, under_way
from tests.aws.trouble import (
    Call,
    InTrouble,
    Mishap,
    after,
    asked_for,
    lost,
    lost_and_then,
    never_arrived,
    throttled,
)

LATER = START + timedelta(days=1)
NONE: frozenset[str] = frozenset()
NEVER_S = 3600.0


class _Aws(InTrouble):
    look_every_s = 1.0

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        self.clock = clock
        async with super().make_backend(tmp_path, clock) as backend:
            yield backend

    def port(self, aws: Aws, names: Names) -> dict[str, Any]:
        return {"queues": DynamoQueues(aws, names, self.clock, look_every_s=self.look_every_s)}


class TestDynamoQueues(_Aws, QueuesContract, QueuesSharedContract):
    pass


class TestDynamoHolds(_Aws, HoldsContract, HoldsSharedContract):
    pass


class TestPausingInTrouble(_Aws):
    @pytest.mark.parametrize("mishap", [lost, never_arrived])
    @clause
    async def test_a_pause_that_is_not_answered_holds(
        self, backend: Backend, mishap: Mishap
    ) -> None:
        self.trouble.meet("put_item", mishap, mishap)

        held = await _paused(backend)

        assert held == OURS
        assert await backend.queues.paused() == [OURS]

    @clause
    async def test_a_pause_that_is_not_answered_and_comes_second_tells_of_the_first(
        self, backend: Backend
    ) -> None:
        first = await backend.queues.pause("a", by="bob", now=START)
        self.trouble.meet("put_item", lost)

        assert await _paused(backend) == first
        assert await backend.queues.paused() == [first]

    @clause
    async def test_a_pause_that_is_made_again_spares_a_queue_that_was_resumed_since(
        self, backend: Backend
    ) -> None:
        ended: list[PausedQueue | None] = []

        async def resume() -> None:
            ended.append(await backend.queues.resume("a"))

        self.trouble.meet("put_item", lost_and_then(resume))

        assert await _paused(backend) == OURS

        assert ended == [OURS]
        assert await backend.queues.paused() == []

    @clause
    async def test_a_pause_that_is_never_answered_is_told_as_unknown(
        self, backend: Backend
    ) -> None:
        self.trouble.meet("put_item", *[lost] * 3)

        with pytest.raises(OutcomeUnknown):
            await _paused(backend)

    @pytest.mark.parametrize("mishap", [lost, never_arrived])
    @clause
    async def test_who_resumes_and_hears_nothing_is_told_of_the_pause_that_ended(
        self, backend: Backend, mishap: Mishap
    ) -> None:
        await _paused(backend)
        self.trouble.meet("update_item", mishap, mishap)

        assert await backend.queues.resume("a") == OURS

        assert await backend.queues.resume("a") is None
        assert await backend.queues.paused() == []

    @clause
    async def test_a_resume_that_is_made_again_spares_a_pause_that_came_since(
        self, backend: Backend
    ) -> None:
        await _paused(backend)

        async def pause() -> None:
            await backend.queues.pause("a", by="bob", reason="a fire", now=LATER)

        self.trouble.meet("update_item", lost_and_then(pause))

        await backend.queues.resume("a")

        held = PausedQueue(name="a", by="bob", reason="a fire", at=LATER)
        assert await backend.queues.paused() == [held]

    @clause
    async def test_who_resumes_what_another_has_resumed_meanwhile_is_told_of_nothing(
        self, backend: Backend
    ) -> None:
        await _paused(backend)
        ended: list[PausedQueue | None] = []

        async def resume() -> None:
            ended.append(await backend.queues.resume("a"))

        self.trouble.meet("update_item", after(resume))

        assert await backend.queues.resume("a") is None
        assert ended == [OURS]

    @clause
    async def test_pauses_are_listed_whole_however_many_pages(self, backend: Backend) -> None:
        names = [f"q{number:02}" for number in range(12)]
        for name in names:
            await backend.queues.pause(name, by="ann", now=START)
        await backend.queues.resume("q07")
        self.trouble.meet("query", *[asked_for(Limit=5)] * 10)

        paused = await backend.queues.paused()

        assert [one.name for one in paused] == [name for name in names if name != "q07"]
        assert self.trouble.count("query") == 3


class TestHoldingInTrouble(_Aws):
    @pytest.mark.parametrize("mishap", [lost, never_arrived])
    @clause
    async def test_a_hold_that_is_not_answered_stands(
        self, backend: Backend, mishap: Mishap
    ) -> None:
        self.trouble.meet("update_item", mishap, mishap)

        assert await _held(backend) == HELD
        assert await backend.queues.paused() == [HELD]

    @clause
    async def test_a_hold_that_is_made_again_spares_a_queue_that_was_resumed_since(
        self, backend: Backend
    ) -> None:
        ended: list[PausedQueue | None] = []

        async def resume() -> None:
            ended.append(await backend.queues.resume("a"))

        self.trouble.meet("update_item", lost_and_then(resume))

        assert await _held(backend) == HELD
        assert ended == [HELD]
        assert await backend.queues.paused() == []

    @clause
    async def test_a_resume_that_is_cut_off_has_ended_the_hold_and_left_the_pause(
        self, backend: Backend
    ) -> None:
        await _held(backend)
        await _paused(backend)
        self.trouble.meet("update_item", asked_for(), throttled)

        with pytest.raises(BackendUnavailable):
            await backend.queues.resume("a")

        assert await backend.queues.paused() == [OURS]
        assert await backend.queues.resume("a") == OURS


class TestWaiting(_Aws):
    look_every_s = 0.01

    @clause
    async def test_all_who_wait_share_one_look(
        self, backend: Backend, open_backend: Opener
    ) -> None:
        trouble, held = self.trouble, _Held()
        async with open_backend() as other:
            trouble.meet("query", *[asked_for()] * 10, held)
            async with asyncio.TaskGroup() as waiting:
                told = [
                    waiting.create_task(backend.queues.paused_of(["a"], other_than=NONE))
                    for _ in range(10)
                ]
                await soon(held.reached.wait())
                await settle()
                assert trouble.count("query") == 11

                await _paused(other)
                held.go_on.set()

            assert {one.result() for one in told} == {frozenset({"a"})}

    @clause
    async def test_who_goes_away_leaves_the_others_waiting(
        self, backend: Backend, open_backend: Opener
    ) -> None:
        async with (
            open_backend() as other,
            under_way(backend.queues.paused_of(["a"], other_than=NONE)) as first,
            under_way(backend.queues.paused_of(["a"], other_than=NONE)) as second,
        ):
            first.cancel()
            await _paused(other)

            assert await soon(second) == {"a"}

    @clause
    async def test_a_look_that_fails_is_told_to_all_who_wait_and_the_next_one_is_fine(
        self, backend: Backend
    ) -> None:
        self.trouble.meet("query", asked_for(), asked_for(), throttled)

        answers = await soon(
            asyncio.gather(
                *(backend.queues.paused_of(["a"], other_than=NONE) for _ in range(2)),
                return_exceptions=True,
            )
        )

        assert [type(answer) for answer in answers] == [BackendUnavailable] * 2
        async with under_way(backend.queues.paused_of(["a"], other_than=NONE)) as waiting:
            await _paused(backend)
            assert await soon(waiting) == {"a"}


class TestWaitingForWhatIsDoneHere(_Aws):
    look_every_s = NEVER_S

    @clause
    async def test_what_is_done_while_a_look_is_under_way_is_looked_for_at_once(
        self, backend: Backend
    ) -> None:
        held = _Held(answers_as_before=True)
        async with under_way(backend.queues.paused_of(["a"], other_than=NONE)) as waiting:
            self.trouble.meet("query", held)
            await backend.queues.pause("other", by="ann", now=START)
            await soon(held.reached.wait())

            await _paused(backend)
            held.go_on.set()

            assert await soon(waiting) == {"a"}

    @clause
    async def test_nobody_goes_on_looking_when_nobody_waits(self, backend: Backend) -> None:
        before = asyncio.all_tasks()
        async with (
            under_way(backend.queues.paused_of(["a"], other_than=NONE)) as first,
            under_way(backend.queues.paused_of(["a"], other_than=NONE)),
        ):
            first.cancel()
            # The second, and what looks for it once an hour.
            await _until(lambda: first.done() and len(asyncio.all_tasks() - before) == 2)
            assert self.trouble.count("query") == 2

        await _until(lambda: asyncio.all_tasks() == before)


class _Held:
    """A call that takes as long as the test wants."""

    def __init__(self, *, answers_as_before: bool = False) -> None:
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self._answers_as_before = answers_as_before

    async def __call__(self, call: Call) -> Answer:
        before = await call()
        self.reached.set()
        await self.go_on.wait()
        return before if self._answers_as_before else await call()


async def _until(so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not so():
            await asyncio.sleep(0.001)


OURS = PausedQueue(name="a", by="ann", reason="a flood", at=START)
HELD = PausedQueue(
    name="a", by="worker-1", reason="limit", at=START, until=START + timedelta(minutes=1)
)


async def _held(backend: Backend) -> PausedQueue:
    until = START + timedelta(minutes=1)
    return await backend.queues.hold("a", until=until, by="worker-1", reason="limit", now=START)


async def _paused(backend: Backend) -> PausedQueue:
    return await backend.queues.pause("a", by="ann", reason="a flood", now=START)
