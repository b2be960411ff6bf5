"""Retries, races and error boundaries that several services use."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

from longshore.errors import BackendUnavailable
from longshore.ports.clock import Clock

logger = logging.getLogger(__name__)

SHORT_PAUSES = tuple(timedelta(milliseconds=50) * 2**n for n in range(5))
"""Pauses for a call that a caller waits for; with them it is made six times."""

_PAUSE = timedelta(seconds=1)

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
