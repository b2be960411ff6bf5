"""Supervision of a running child: why it stops, and that nothing of it is left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from enum import Enum
from types import TracebackType
from typing import Any

from longshore.ports.clock import Clock
from longshore.ports.runner import RunningAttempt
from longshore.services.race import race


class StopCause(Enum):
    """Why supervision of a child ended."""

    CHILD_ENDED = "the child has ended, or its reports cannot be read"
    TIMED_OUT = "the attempt ran longer than it may"
    LEASE_ENDED = "the lease can no longer be trusted"
    REQUESTED = "the attempt was asked to stop"


class Supervision:
    """Reads a child's reports until the child ends or must be stopped.

    On exit the child is dead and its reports are read, also if the caller is cancelled.
    """

    def __init__(self, child: RunningAttempt, reading: Coroutine[Any, Any, None]) -> None:
        self._child = child
        self.reading = asyncio.ensure_future(reading)

    async def __aenter__(self) -> Supervision:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._child.stop(grace=timedelta(0))
        await asyncio.gather(self.reading, return_exceptions=True)

    async def wait(
        self,
        clock: Clock,
        timeout: timedelta,
        *,
        lease_end: Coroutine[Any, Any, None],
        requested: asyncio.Future[Any],
    ) -> StopCause:
        """Wait for the first cause; if several apply, the child's end counts, then the lease's."""
        async with race(self.reading, clock.sleep(timeout), lease_end, requested) as futures:
            reading, _, lease_ended, _ = futures
            if reading.done():
                return StopCause.CHILD_ENDED
            if lease_ended.done():
                return StopCause.LEASE_ENDED
            return StopCause.REQUESTED if requested.done() else StopCause.TIMED_OUT
