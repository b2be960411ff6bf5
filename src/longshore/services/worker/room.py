"""Room for children: an agent takes much memory, so not all that are there to be run run at once.

Who finds no room waits for it with its lease, and keeps it. Who could not be started for want of
processes gives its task back after a pause that grows.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from longshore.core.definition import RunnerKind
from longshore.core.rows import TaskRow
from longshore.ports.runner import WorkOrder

# Before a task that no process could be had for is given back: twice as long each time.
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(seconds=30)
_MOST_DOUBLINGS = 5


class Room:
    """How many agents one worker runs at once; others are not counted."""

    def __init__(self, agents: int | None = None) -> None:
        self._places = None if agents is None else asyncio.Semaphore(max(agents, 1))

    async def enter(self, order: WorkOrder, ended: asyncio.Future[Any]) -> bool:
        """Wait until there is room; False if the attempt was ended before there was any.

        Who was let in has to ``leave``.
        """
        if self._places is None or order.definition.runner is not RunnerKind.AGENT:
            return True
        if not self._places.locked():
            return await self._places.acquire()
        waiting = asyncio.ensure_future(self._places.acquire())
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if ended.done() or not waiting.done():
                await self._give_up(waiting)
        return not ended.done()

    async def _give_up(self, waiting: asyncio.Future[Any]) -> None:
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
            self._leave()  # it had been let in just then

    def leave(self, order: WorkOrder) -> None:
        """Make room for another."""
        if order.definition.runner is RunnerKind.AGENT:
            self._leave()

    def _leave(self) -> None:
        if self._places is not None:
            self._places.release()


def pause_before_release(row: TaskRow) -> timedelta:
    """How long to keep a task for which there was no process, before it is given back."""
    uncounted = max(row.attempt - 1 - row.attempts_used, 0)
    return min(_FIRST_PAUSE * (1 << min(uncounted, _MOST_DOUBLINGS)), _LONGEST_PAUSE)
