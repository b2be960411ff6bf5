"""The loop on which waiting takes no time."""

import asyncio
import time
from collections.abc import Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from verification.simulation.loop import Deadlock, Livelock, VirtualLoop


def run_virtual(work: Coroutine[Any, Any, Any]) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_a_day_of_waiting_takes_no_time() -> None:
    async def wait() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    before = time.process_time()
    assert run_virtual(wait()) == 86_400
    assert time.process_time() - before < 1  # of work, not of waiting


def test_timers_fire_in_the_order_of_their_times() -> None:
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(name)

    async def all_of_them() -> None:
        await asyncio.gather(sleeper("late", 3), sleeper("early", 1), sleeper("between", 2))

    run_virtual(all_of_them())
    assert woken == ["early", "between", "late"]


def test_a_timeout_ends_an_endless_wait() -> None:
    async def impatient() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(impatient()) == 5


def test_a_deadlock_is_reported() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    loop = VirtualLoop()
    waiting = loop.create_task(wait())
    with pytest.raises(Deadlock):
        loop.run_until_complete(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)
    loop.close()


def test_an_endless_loop_without_progress_of_time_is_ended() -> None:
    async def circle() -> None:
        while True:
            await asyncio.sleep(0)

    loop = VirtualLoop()
    circling = loop.create_task(circle())
    with pytest.raises(Livelock):
        loop.run_until_complete(circling)
    circling.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(circling)
    loop.close()


def test_a_context_variable_is_visible_only_in_the_task_that_set_it() -> None:
    mine: ContextVar[str] = ContextVar("mine", default="nothing")

    async def wake(event: asyncio.Event) -> str:
        mine.set("something")
        await asyncio.sleep(1)
        event.set()
        return mine.get()

    async def sleep(event: asyncio.Event) -> str:
        await event.wait()
        return mine.get()

    async def both() -> list[str]:
        event = asyncio.Event()
        return await asyncio.gather(sleep(event), wake(event))

    assert run_virtual(both()) == ["nothing", "something"]
