"""How a contract suite is run: a clause is a coroutine with a backend and a clock that is set.

A backend is held to a suite by a subclass that says how to open it::

    class TestMemoryQueue(TaskQueueContract):
        @asynccontextmanager
        async def make_backend(self, tmp_path, clock):
            yield memory_backend(clock)

A suite whose name ends in ``SharedContract`` opens the backend several times on the same folder, as
processes on one machine do; only backends that can be shared subclass it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from longshore.ports.backend import Backend
from longshore.ports.clock import Clock
from longshore.testing.clock import FakeClock

START = datetime(2030, 1, 7, 12, 0, 0, 123_457, tzinfo=UTC)
"""When every clause begins: not a whole millisecond, so that rounding shows."""

TICK = timedelta(microseconds=1)
"""The smallest step of time: what ends at a moment is still on one tick before."""

NO_WAIT = timedelta(0)
CALLERS = 16
"""How many take part in a race."""

T = TypeVar("T")
Opener = Callable[[], AbstractAsyncContextManager[Backend]]
_PROVIDED = frozenset({"backend", "open_backend", "clock"})


class PortContract:
    """What every suite of a backend's port has: the way to open the backend."""

    rounds: ClassVar[int] = 50
    """How often a race is run: one round misses most real ones. Fewer where a call is slow."""
    limit_s: ClassVar[float] = 30
    """How long one clause may take."""

    def make_backend(self, tmp_path: Path, clock: Clock) -> AbstractAsyncContextManager[Backend]:
        """A backend that keeps all it has under ``tmp_path`` and reads time from ``clock``."""
        raise NotImplementedError


def clause(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a scenario.

    It is given what it names: ``backend`` (open), ``open_backend`` (each ``async with`` of it is
    another instance on the same store), ``clock``; what else it names is pytest's to give.
    """
    own, *parameters = signature(scenario).parameters.values()

    @wraps(scenario)
    def test(self: PortContract, tmp_path: Path, **fixtures: Any) -> None:
        asyncio.run(_run_clause(scenario, self, tmp_path, fixtures))

    # What pytest reads to know which fixtures and parameters to give.
    folder = Parameter("tmp_path", Parameter.POSITIONAL_OR_KEYWORD)
    others = [parameter for parameter in parameters if parameter.name not in _PROVIDED]
    test.__signature__ = Signature([own, folder, *others])  # type: ignore[attr-defined]
    return test


async def _run_clause(
    scenario: Callable[..., Coroutine[Any, Any, None]],
    suite: PortContract,
    tmp_path: Path,
    arguments: dict[str, Any],
) -> None:
    clock = FakeClock(START)

    def open_backend() -> AbstractAsyncContextManager[Backend]:
        return suite.make_backend(tmp_path, clock)

    parameters = signature(scenario).parameters
    ours = {"clock": clock, "open_backend": open_backend}
    arguments |= {name: value for name, value in ours.items() if name in parameters}
    async with asyncio.timeout(suite.limit_s), AsyncExitStack() as stack:
        if "backend" in parameters:
            arguments["backend"] = await stack.enter_async_context(open_backend())
        await scenario(suite, **arguments)


async def gather_all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """Start all of the calls together; what each gave or raised, in order."""
    return await asyncio.gather(*calls, return_exceptions=True)


async def settle() -> None:
    """Give everybody the time to do what can be done now, threads too."""
    for _ in range(10):
        await asyncio.sleep(0.001)


async def without_time_passing(awaitable: Awaitable[T]) -> T:
    """The outcome of something that must come without the clock moving."""
    async with asyncio.timeout(10):
        return await awaitable


async def advance_until_done(task: asyncio.Task[T], clock: FakeClock, *, step: timedelta) -> T:
    """The outcome of something that comes as time passes, moved on step by step.

    A backend with threads may begin to wait a step late, so callers check lower bounds exactly and
    upper ones with a few steps to spare.
    """
    for _ in range(200):
        await settle()
        if task.done():
            return task.result()
        clock.advance(step)
    task.cancel()
    message = f"nothing came although {step * 200} passed on the clock"
    raise AssertionError(message)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Start something that waits, and let it begin to; it is cancelled at the end."""
    task = asyncio.create_task(work)
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
