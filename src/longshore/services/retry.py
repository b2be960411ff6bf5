"""Retries of calls that are safe to repeat while the backend is unavailable."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

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
