"""Waiting for output on DynamoDB, where another process rings no bell."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from longshore.adapters.aws import output
from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.output import DynamoOutputLog
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.output import START, Place
from longshore.testing.contracts.suite import at_once, settle, soon, under_way
from tests.aws.output_house import House, entries, open_house, played
from tests.aws.standin import stand_in

MINUTE = timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)
THROTTLED = BackendUnavailable("throttled")

house = pytest.fixture(scope="module")(open_house)


@played
async def test_all_who_wait_for_a_task_share_one_look(house: House) -> None:
    log, task = house.process(), house.new_task()
    await log.append(task, entries(1))
    house.aws.calls.clear()
    waits = [
        asyncio.create_task(log.wait(task, after=Place(1, 1), wait=MINUTE)) for _ in range(100)
    ]
    await settle()

    for _ in range(5):
        house.clock.advance(timedelta(seconds=1))
        await settle()
    looks = len(house.aws.calls)
    await log.append(task, entries(2))

    assert await soon(asyncio.gather(*waits)) == [True] * 100
    assert 1 <= looks <= 12  # the machine may be slow enough for some in real time


@played
async def test_a_reader_who_has_just_looked_does_not_look_again_with_each_short_wait(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_POLL", MINUTE)
    log, task = house.process(), house.new_task()
    await log.append(task, entries(1))
    assert await log.read(task) == entries(1)
    house.aws.calls.clear()

    for _ in range(20):
        async with under_way(log.wait(task, after=Place(1, 1), wait=MILLISECOND)) as waiting:
            house.clock.advance(MILLISECOND)
            assert await soon(waiting) is False

    assert house.aws.calls == []


@played
async def test_what_another_process_appends_is_seen_while_our_clock_stands_still(
    house: House,
) -> None:
    log, task = house.process(), house.new_task()
    async with under_way(log.wait(task, after=START, wait=MINUTE)) as waiting:
        await house.process().append(task, entries(1))

        assert await soon(waiting) is True


@pytest.mark.parametrize(("last", "told"), [(99, False), (100, True)])
@played
async def test_a_wait_for_a_place_further_on_ends_when_output_gets_there(
    house: House, last: int, told: bool
) -> None:
    log, task = house.process(), house.new_task()
    await house.process().append(task, entries(1, 2))
    async with under_way(log.wait(task, after=Place(1, 99), wait=3 * MINUTE)) as waiting:
        other = house.process()
        await other.append(task, entries(*range(3, 50)))
        await other.append(task, entries(*range(50, last + 1)))
        for _ in range(200):
            await settle()
            if waiting.done():
                break
            house.clock.advance(timedelta(seconds=1))

        assert await soon(waiting) is told


@played
async def test_a_wait_outlasts_looks_that_fail(house: House) -> None:
    log, task = house.process(), house.new_task()
    house.aws.before = lambda number, _: THROTTLED if number <= 3 else None
    async with under_way(log.wait(task, after=START, wait=MINUTE)) as waiting:
        while len(house.aws.calls) < 3:
            house.clock.advance(timedelta(seconds=1))
            await settle()
        await house.process().append(task, entries(1))

        assert await soon(waiting) is True


@played
async def test_everybody_hears_that_looking_is_denied(house: House) -> None:
    log, task = house.process(), house.new_task()
    house.aws.before = lambda number, _: BackendRejected("denied")

    answers = await soon(at_once(log.wait(task, after=START, wait=MINUTE) for _ in range(3)))

    assert [type(answer) for answer in answers] == [BackendRejected] * 3


@played
async def test_a_wait_that_was_called_off_leaves_nobody_looking(house: House) -> None:
    arrived, never = asyncio.Event(), asyncio.Event()

    class Silent(Aws):
        async def call(self, *_: Any, **__: Any) -> Any:
            arrived.set()
            await never.wait()

    log, task = DynamoOutputLog(Silent(stand_in().place), house.names, house.clock), "job_a"
    before = asyncio.all_tasks()
    async with under_way(log.wait(task, after=START, wait=MINUTE)):
        await soon(arrived.wait())
    await settle()

    assert asyncio.all_tasks() <= before


@played
async def test_a_look_that_was_called_off_is_made_by_the_next_who_waits(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_POLL", MINUTE)
    log, task, never = house.process(), house.new_task(), asyncio.Event()
    await house.process().append(task, entries(1))
    house.aws.reset()
    house.aws.meanwhile = (1, never.wait)
    async with under_way(log.wait(task, after=START, wait=MINUTE)):
        assert house.aws.calls == ["query"]

    assert await soon(log.wait(task, after=START, wait=MINUTE)) is True


@played
async def test_a_task_that_is_waited_for_is_not_forgotten_among_many(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_TASKS_KNOWN", 2)
    monkeypatch.setattr(output, "_TILES_KEPT", 2)
    log, task = house.process(), house.new_task()
    async with under_way(log.wait(task, after=START, wait=MINUTE)) as waiting:
        others = [house.new_task() for _ in range(5)]
        for other in others:
            await log.append(other, entries(1, 2, 3))
            assert await log.read(other) == entries(1, 2, 3)
        for other in others:
            assert await log.read(other, after=Place(1, 1), limit=1) == entries(2)
            await log.append(other, entries(4))
        house.aws.before = lambda number, operation: THROTTLED if operation == "query" else None
        await log.append(task, entries(1))

        assert await soon(waiting) is True
