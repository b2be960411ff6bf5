"""A world in which nothing goes wrong by itself, for tests on the simulated clock."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import Any

from longshore.settings import Settings
from longshore.testing.simulation.faults import Fault
from longshore.testing.simulation.line import Rumours
from longshore.testing.simulation.loop import VirtualLoop
from longshore.testing.simulation.processes import Machine, Process
from longshore.testing.simulation.world import World

ALL = frozenset(Fault)


def simulated(play: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test on the simulated clock."""

    @wraps(play)
    def test() -> None:
        async def and_leave() -> None:
            await play()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

        loop = VirtualLoop()
        try:
            loop.run_until_complete(and_leave())
        finally:
            loop.close()

    return test


def a_process(world: World, name: str = "a") -> Process:
    return Process(world, Machine(world, "m"), name, Rumours(Random(0)))


def calm(seed: int = 1) -> World:
    return World(seed, Settings(backend="memory"), atomic=True, without=ALL)
