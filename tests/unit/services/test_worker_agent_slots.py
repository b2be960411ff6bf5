"""Agents that do not fit into memory wait for room; other tasks do not."""

import asyncio
from datetime import timedelta

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.ports.runner import AttemptSpec
from longshore.services.worker.context import AgentSlots


def make_spec(kind: RunnerKind = RunnerKind.AGENT) -> AttemptSpec:
    return AttemptSpec(
        task_id="job_a", job_id="job", key="a", tenant="default", attempt=1, fence=1,
        definition=Definition(name="d", runner=kind), timeout=timedelta(seconds=1),
    )  # fmt: skip


def never() -> asyncio.Future[object]:
    return asyncio.get_running_loop().create_future()


def test_an_agent_waits_until_another_has_left() -> None:
    async def run_scenario() -> None:
        room = AgentSlots(1)
        assert await room.acquire(make_spec(), never())
        second = asyncio.ensure_future(room.acquire(make_spec(), never()))
        third = asyncio.ensure_future(room.acquire(make_spec(), never()))
        await asyncio.sleep(0)
        assert not second.done()

        room.release(make_spec())

        assert await second
        assert not third.done()
        room.release(make_spec())
        assert await third

    asyncio.run(run_scenario())


def test_an_attempt_that_ends_while_it_waits_takes_no_slot() -> None:
    async def run_scenario() -> None:
        room, ended = AgentSlots(1), never()
        assert await room.acquire(make_spec(), never())
        waiting = asyncio.ensure_future(room.acquire(make_spec(), ended))
        await asyncio.sleep(0)

        ended.set_result(None)

        assert not await waiting
        room.release(make_spec())
        assert await room.acquire(make_spec(), never())

    asyncio.run(run_scenario())


def test_an_attempt_that_ends_as_it_is_admitted_gives_its_slot_back() -> None:
    async def run_scenario() -> None:
        room, ended = AgentSlots(1), never()
        assert await room.acquire(make_spec(), never())
        waiting = asyncio.ensure_future(room.acquire(make_spec(), ended))
        await asyncio.sleep(0)

        room.release(make_spec())
        ended.set_result(None)

        assert not await waiting
        assert await room.acquire(make_spec(), never())

    asyncio.run(run_scenario())


def test_an_attempt_that_is_cancelled_while_it_waits_takes_no_slot() -> None:
    async def run_scenario() -> None:
        room = AgentSlots(1)
        assert await room.acquire(make_spec(), never())
        waiting = asyncio.ensure_future(room.acquire(make_spec(), never()))
        await asyncio.sleep(0)

        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        room.release(make_spec())
        assert await room.acquire(make_spec(), never())

    asyncio.run(run_scenario())


@pytest.mark.parametrize(
    ("limit", "kind"), [(1, RunnerKind.COMMAND), (1, RunnerKind.PYTHON), (None, RunnerKind.AGENT)]
)
def test_others_and_those_without_a_ceiling_never_wait(limit: int | None, kind: RunnerKind) -> None:
    async def run_scenario() -> None:
        there = AgentSlots(limit)
        for _ in range(5):
            assert await there.acquire(make_spec(kind), never())
        for _ in range(5):
            there.release(make_spec(kind))

    asyncio.run(run_scenario())
