"""Who may begin something of a paused queue, and who may not."""

import asyncio

from longshore.testing.simulation.pauses import Pauses
from longshore.testing.simulation.world import World
from tests.simulation.stage import a_process, calm, simulated


async def a_pause_of(seconds: float) -> tuple[World, Pauses]:
    world = calm()
    world.pauses.told("a", ())
    await asyncio.sleep(1)
    world.pauses.switched("default", paused=True)
    await asyncio.sleep(seconds)
    return world, world.pauses


@simulated
async def test_who_knows_of_a_pause_begins_nothing() -> None:
    world, pauses = await a_pause_of(0.1)
    pauses.told("a", ("default",))
    await asyncio.sleep(0.1)
    pauses.handed(a_process(world), "t", "other")
    pauses.claimed("a", "t")
    assert world.breaches == []
    pauses.handed(a_process(world), "t", "default")
    pauses.claimed("a", "t")
    assert len(world.breaches) == 1


@simulated
async def test_who_had_the_message_before_it_knew_may_begin() -> None:
    world, pauses = await a_pause_of(0.1)
    pauses.handed(a_process(world), "t", "default")
    pauses.told("a", ("default",))
    await asyncio.sleep(10)
    pauses.claimed("a", "t")
    assert world.breaches == []


@simulated
async def test_who_does_not_hear_of_a_pause_in_time_is_noticed() -> None:
    world, pauses = await a_pause_of(10)
    pauses.handed(a_process(world), "t", "default")
    pauses.claimed("a", "t")
    assert len(world.breaches) == 1


@simulated
async def test_trouble_on_its_line_and_a_machine_that_stood_still_excuse_it() -> None:
    world, pauses = await a_pause_of(10)
    pauses.trouble("a")
    pauses.handed(a_process(world), "t", "default")
    pauses.claimed("a", "t")
    assert world.breaches == []

    world, pauses = await a_pause_of(5)
    process = a_process(world)
    process.machine.pause(5)
    await asyncio.sleep(5)
    pauses.handed(process, "t", "default")
    pauses.claimed("a", "t")
    assert world.breaches == []


@simulated
async def test_a_queue_that_is_served_again_is_served() -> None:
    world, pauses = await a_pause_of(10)
    pauses.switched("default", paused=False)
    pauses.handed(a_process(world), "t", "default")
    pauses.claimed("a", "t")
    assert world.breaches == []


@simulated
async def test_whoever_is_told_that_a_queue_is_paused_finds_it_so() -> None:
    world, pauses = await a_pause_of(10)
    pauses.answered("default", asked=0.5)
    pauses.switched("default", paused=False)
    pauses.answered("default", asked=0.5)  # somebody else was quick to resume it
    assert world.breaches == []
    pauses.answered("other", asked=0.5)
    assert len(world.breaches) == 1
