"""Who may begin something of a paused queue, and who may not."""

import asyncio

from tests.simulation.harness import calm_simulation, make_process, simulated
from verification.simulation.monitor import PauseMonitor
from verification.simulation.simulation import Simulation


async def paused_for(seconds: float) -> tuple[Simulation, PauseMonitor]:
    world = calm_simulation()
    world.pause_monitor.on_informed("a", ())
    await asyncio.sleep(1)
    world.pause_monitor.on_switched("default", paused=True)
    await asyncio.sleep(seconds)
    return world, world.pause_monitor


@simulated
async def test_who_knows_of_a_pause_begins_nothing() -> None:
    world, pauses = await paused_for(0.1)
    pauses.on_informed("a", ("default",))
    await asyncio.sleep(0.1)
    pauses.on_received(make_process(world), "t", "other")
    pauses.on_claimed("a", "t")
    assert world.violations == []
    pauses.on_received(make_process(world), "t", "default")
    pauses.on_claimed("a", "t")
    assert len(world.violations) == 1


@simulated
async def test_who_had_the_message_before_it_knew_may_begin() -> None:
    world, pauses = await paused_for(0.1)
    pauses.on_received(make_process(world), "t", "default")
    pauses.on_informed("a", ("default",))
    await asyncio.sleep(10)
    pauses.on_claimed("a", "t")
    assert world.violations == []


@simulated
async def test_who_does_not_hear_of_a_pause_in_time_is_noticed() -> None:
    world, pauses = await paused_for(10)
    pauses.on_received(make_process(world), "t", "default")
    pauses.on_claimed("a", "t")
    assert len(world.violations) == 1


@simulated
async def test_trouble_on_its_line_and_a_machine_that_stood_still_excuse_it() -> None:
    world, pauses = await paused_for(10)
    pauses.on_delay("a")
    pauses.on_received(make_process(world), "t", "default")
    pauses.on_claimed("a", "t")
    assert world.violations == []

    world, pauses = await paused_for(5)
    process = make_process(world)
    process.machine.pause(5)
    await asyncio.sleep(5)
    pauses.on_received(process, "t", "default")
    pauses.on_claimed("a", "t")
    assert world.violations == []


@simulated
async def test_a_queue_that_is_served_again_is_served() -> None:
    world, pauses = await paused_for(10)
    pauses.on_switched("default", paused=False)
    pauses.on_received(make_process(world), "t", "default")
    pauses.on_claimed("a", "t")
    assert world.violations == []


@simulated
async def test_whoever_is_told_that_a_queue_is_paused_finds_it_so() -> None:
    world, pauses = await paused_for(10)
    pauses.on_answered("default", requested_at=0.5)
    pauses.on_switched("default", paused=False)
    pauses.on_answered("default", requested_at=0.5)  # somebody else was quick to resume it
    assert world.violations == []
    pauses.on_answered("other", requested_at=0.5)
    assert len(world.violations) == 1
