"""Retries, races, error boundaries, and the probe of the store, for several services."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock

logger = logging.getLogger(__name__)

SHORT_PAUSES = tuple(timedelta(milliseconds=50) * 2**n for n in range(5))
"""Pauses for a call that a caller waits for; with them it is made six times."""

_PAUSE = timedelta(seconds=1)
PROBE_INTERVAL = timedelta(seconds=5)
PROBE_TIMEOUT = timedelta(seconds=5)
_NO_TASK = "readiness-probe"

ResultT = TypeVar("ResultT")


def pauses_within(clock: Clock, timeout: timedelta) -> Iterator[timedelta]:
    """Yields pauses of one second until ``timeout`` has passed.

    For results of finished work: giving up early would mean paying for the work twice.
    """
    deadline = clock.elapsed() + timeout
    while clock.elapsed() < deadline:
        yield _PAUSE


async def retry_unavailable(
    clock: Clock,
    call: Callable[[], Awaitable[ResultT]],
    pauses: Iterable[timedelta] = SHORT_PAUSES,
    **fields: object,
) -> ResultT:
    """Repeat a call with these pauses in between, and return its result.

    Args:
        fields: What the log entry of each failed call says.

    Raises:
        BackendUnavailable: the last call failed too.
    """
    for pause in pauses:
        try:
            return await call()
        except BackendUnavailable as error:
            logger.warning("backend.unavailable", extra={**fields, "error": str(error)})
            await clock.sleep(pause)
    return await call()


@asynccontextmanager
async def race(*awaitables: Awaitable[Any]) -> AsyncIterator[tuple[asyncio.Future[Any], ...]]:
    """Wait until one of the awaitables is done, and yield all of them as futures.

    On exit, coroutines that are not done are cancelled and awaited. A future that the caller
    passed stays as it is.
    """
    futures = tuple(asyncio.ensure_future(awaitable) for awaitable in awaitables)
    own = [future for future in futures if future not in awaitables]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        yield futures
    finally:
        for future in own:
            future.cancel()
        await asyncio.gather(*own, return_exceptions=True)


def run_without_loop(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine on this thread; it blocks where it would wait.

    Only for coroutines that use nothing but the ports of a backend that is ``blocking``.
    """
    running = asyncio._get_running_loop()
    # A loop that runs on this thread is blocked meanwhile, and must not be waited for.
    asyncio._set_running_loop(None)
    try:
        work.send(None)
    except StopIteration as end:
        result: ResultT = end.value
        return result
    finally:
        asyncio._set_running_loop(running)
        work.close()
    raise RuntimeError("a submit waited for an event loop")


@contextlib.contextmanager
def log_and_continue(
    logger: logging.Logger, event: str, *, unavailable: str | None = None, **fields: object
) -> Iterator[None]:
    """Log an exception with its traceback, and continue after the block.

    Args:
        unavailable: The event that reports ``BackendUnavailable``; None: it is raised, because the
            next item would fail in the same way.
    """
    try:
        yield
    except BackendUnavailable as error:
        if unavailable is None:
            raise
        logger.warning(unavailable, extra={**fields, "error": str(error)})
    except Exception:  # one item must not stop the others
        logger.exception(event, extra=fields)


@dataclass(eq=False)
class Readiness:
    """Proves that the store takes writes; on a backend without a test write, that it answers.

    A store whose disk is full, or whose writer hangs, can be read; so a probe writes. Probes that
    come together share one write, whose answer is used for some seconds. A write that hangs is not
    repeated: every later probe reports it at once.
    """

    backend: Backend
    _probing: asyncio.Future[None] | None = None
    _began_at: timedelta = field(default=timedelta(0))

    async def check(self) -> None:
        """Probe the store, or use the probe of the last seconds.

        Raises:
            BackendUnavailable: it takes no writes; the message is the reason.
        """
        clock = self.backend.clock
        now, probing = clock.elapsed(), self._probing
        if probing is None or (probing.done() and now - self._began_at >= PROBE_INTERVAL):
            probing = self._probing = asyncio.ensure_future(self._probe())
            self._began_at = now
        left = self._began_at + PROBE_TIMEOUT - now
        if not probing.done() and left > timedelta(0):
            async with race(probing, clock.sleep(left)):
                pass
        if not probing.done():
            waited = (clock.elapsed() - self._began_at).total_seconds()
            raise BackendUnavailable(f"the writer of the store has not answered for {waited:.0f} s")
        probing.result()

    async def _probe(self) -> None:
        if self.backend.prove_write is None:
            await self.backend.ledger.get_task(_NO_TASK)
        else:
            await self.backend.prove_write()
