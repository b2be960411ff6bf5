"""The pause monitor notices workers that start tasks of a paused queue."""

import asyncio

from tests.simulation.harness import calm_simulation, make_process, simulated
from verification.simulation.monitor import PauseMonitor
from verification.simulation.simulation import Simulation


async def paused_for(seconds: float) -> tuple[Simulation, PauseMonitor]:
    simulation = calm_simulation()
    simulation.pause_monitor.on_informed("a", ())
    await asyncio.sleep(1)
    simulation.pause_monitor.on_switched("default", paused=True)
    await asyncio.sleep(seconds)
    return simulation, simulation.pause_monitor


@simulated
async def test_a_worker_that_knows_of_a_pause_may_start_nothing() -> None:
    simulation, pauses = await paused_for(0.1)
    pauses.on_informed("a", ("default",))
    await asyncio.sleep(0.1)
    pauses.on_received(make_process(simulation), "t", "other")
    pauses.on_claimed("a", "t", "default")
    assert simulation.violations == []
    pauses.on_received(make_process(simulation), "t", "default")
    pauses.on_claimed("a", "t", "default")
    assert len(simulation.violations) == 1


@simulated
async def test_a_message_received_before_the_pause_was_known_may_be_used() -> None:
    simulation, pauses = await paused_for(0.1)
    pauses.on_received(make_process(simulation), "t", "default")
    pauses.on_informed("a", ("default",))
    await asyncio.sleep(10)
    pauses.on_claimed("a", "t", "default")
    assert simulation.violations == []


@simulated
async def test_a_worker_that_learns_of_a_pause_too_late_is_noticed() -> None:
    simulation, pauses = await paused_for(10)
    pauses.on_received(make_process(simulation), "t", "default")
    pauses.on_claimed("a", "t", "default")
    assert len(simulation.violations) == 1


@simulated
async def test_a_delayed_call_and_a_paused_machine_are_excuses() -> None:
    simulation, pauses = await paused_for(10)
    pauses.on_delay("a")
    pauses.on_received(make_process(simulation), "t", "default")
    pauses.on_claimed("a", "t", "default")
    assert simulation.violations == []

    simulation, pauses = await paused_for(5)
    process = make_process(simulation)
    process.machine.pause(5)
    await asyncio.sleep(5)
    pauses.on_received(process, "t", "default")
    pauses.on_claimed("a", "t", "default")
    assert simulation.violations == []


@simulated
async def test_tasks_of_a_resumed_queue_may_start() -> None:
    simulation, pauses = await paused_for(10)
    pauses.on_switched("default", paused=False)
    pauses.on_received(make_process(simulation), "t", "default")
    pauses.on_claimed("a", "t", "default")
    assert simulation.violations == []


@simulated
async def test_an_answered_pause_must_exist() -> None:
    simulation, pauses = await paused_for(10)
    pauses.on_answered("default", requested_at=0.5)
    pauses.on_switched("default", paused=False)
    pauses.on_answered("default", requested_at=0.5)  # another client has resumed it
    assert simulation.violations == []
    pauses.on_answered("other", requested_at=0.5)
    assert len(simulation.violations) == 1
