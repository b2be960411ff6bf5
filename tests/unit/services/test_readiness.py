"""Readiness: one write for all probes, at most every five seconds, and its reason if it fails."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import wraps

import pytest

from longshore.errors import BackendUnavailable
from longshore.services.resilience import PROBE_INTERVAL, PROBE_TIMEOUT, Readiness
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START, settle
from longshore.testing.memory.backend import memory_backend

TICK = timedelta(microseconds=1)


@dataclass
class Store:
    """A store that takes writes, refuses them, or does not answer."""

    clock: FakeClock = field(default_factory=lambda: FakeClock(START))
    writes: int = 0
    problem: str | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def prove_write(self) -> None:
        self.writes += 1
        await self.answered.wait()
        if self.problem:
            raise BackendUnavailable(self.problem)


Scenario = Callable[[Store, Readiness], Coroutine[None, None, None]]


def with_store(scenario: Scenario) -> Callable[[], None]:
    @wraps(scenario)
    def test() -> None:
        async def run() -> None:
            store = Store()
            store.answered.set()
            backend = replace(memory_backend(store.clock), prove_write=store.prove_write)
            async with asyncio.timeout(10):
                await scenario(store, Readiness(backend))

        asyncio.run(run())

    del test.__wrapped__  # pytest would take its arguments for fixtures
    return test


@with_store
async def test_probes_share_one_write_every_five_seconds(store: Store, ready: Readiness) -> None:
    await asyncio.gather(*(ready.check() for _ in range(50)))
    store.clock.advance(PROBE_INTERVAL - TICK)
    await ready.check()
    assert store.writes == 1

    store.clock.advance(TICK)
    await asyncio.gather(*(ready.check() for _ in range(50)))
    assert store.writes == 2


@with_store
async def test_a_refused_write_is_the_answer_until_one_succeeds(
    store: Store, ready: Readiness
) -> None:
    store.problem = "disk full: /data has 0 bytes free"
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="disk full: /data has 0 bytes free"):
            await ready.check()
    assert store.writes == 1

    store.problem = None
    store.clock.advance(PROBE_INTERVAL)
    await ready.check()


@with_store
async def test_a_write_that_hangs_is_not_repeated_and_every_later_probe_says_so_at_once(
    store: Store, ready: Readiness
) -> None:
    store.answered.clear()
    first = asyncio.ensure_future(ready.check())
    await settle()
    store.clock.advance(PROBE_TIMEOUT)
    with pytest.raises(BackendUnavailable, match="has not answered for 5 s"):
        await first

    store.clock.advance(10 * PROBE_INTERVAL)
    with pytest.raises(BackendUnavailable, match="has not answered for 55 s"):
        await ready.check()
    assert store.writes == 1

    store.answered.set()
    await settle()
    await ready.check()


@with_store
async def test_a_probe_whose_client_has_gone_does_not_end_the_write_of_the_others(
    store: Store, ready: Readiness
) -> None:
    store.answered.clear()
    first, second = (asyncio.ensure_future(ready.check()) for _ in range(2))
    await settle()
    first.cancel()
    await settle()
    store.answered.set()

    await second
    assert store.writes == 1


def test_without_a_test_write_the_store_must_answer_a_read() -> None:
    async def scenario() -> None:
        backend = memory_backend(FakeClock(START))
        await Readiness(backend).check()

        async def fail(_: str) -> None:
            raise BackendUnavailable("the table cannot be reached")

        backend.ledger.get_task = fail
        with pytest.raises(BackendUnavailable, match="cannot be reached"):
            await Readiness(backend).check()

    asyncio.run(scenario())
