"""A simulation without faults, for tests on the simulated clock."""

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from random import Random
from typing import Any

from longshore.settings import Settings
from verification.simulation.faults import Fault
from verification.simulation.faulty_port import StaleReads
from verification.simulation.loop import VirtualLoop
from verification.simulation.processes import Machine, Process
from verification.simulation.simulation import Simulation

ALL_FAULTS = frozenset(Fault)


def simulated(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test on the simulated clock."""

    @wraps(function)
    def test() -> None:
        async def and_leave() -> None:
            await function()
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


def make_process(simulation: Simulation, name: str = "a") -> Process:
    return Process(simulation, Machine(simulation, "m"), name, StaleReads(Random(0)))


def calm_simulation(seed: int = 1) -> Simulation:
    return Simulation(seed, Settings(), atomic=False, without=ALL_FAULTS)
