"""Concurrency limit for agents, which need much memory.

An attempt that has no free slot waits while its lease is renewed. If no process can be started, the
task is released after an exponential backoff.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

from longshore.core.definitions.definition import RunnerKind
from longshore.core.tasks.rows import TaskRow
from longshore.ports.runner import AttemptSpec

# Pause before a task without a process is released: it doubles each time.
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(seconds=30)
_MOST_DOUBLINGS = 5


class AgentSlots:
    """Limits how many agents one worker runs at once; other runners are not limited."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = None if limit is None else asyncio.Semaphore(max(limit, 1))

    async def acquire(self, spec: AttemptSpec, ended: asyncio.Future[Any]) -> bool:
        """Wait for a slot. Returns False if the attempt was asked to stop before.

        An acquired slot must be released.
        """
        if self._slots is None or spec.definition.runner is not RunnerKind.AGENT:
            return True
        if not self._slots.locked():
            return await self._slots.acquire()
        waiting = asyncio.ensure_future(self._slots.acquire())
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if ended.done() or not waiting.done():
                await self._cancel_wait(waiting)
        return not ended.done()

    async def _cancel_wait(self, waiting: asyncio.Future[Any]) -> None:
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
            self._release()  # the slot was acquired at the same moment

    def release(self, spec: AttemptSpec) -> None:
        """Free the slot of an attempt."""
        if spec.definition.runner is RunnerKind.AGENT:
            self._release()

    def _release(self) -> None:
        if self._slots is not None:
            self._slots.release()


def pause_before_release(row: TaskRow) -> timedelta:
    """Returns how long to wait before a task without a process is released."""
    uncounted = max(row.attempt - 1 - row.attempts_used, 0)
    return min(_FIRST_PAUSE * (1 << min(uncounted, _MOST_DOUBLINGS)), _LONGEST_PAUSE)
