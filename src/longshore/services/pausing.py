"""Pausing: a queue is paused and resumed by somebody, for a reason, and that can be seen.

A pause holds for all tenants (see ``ports.queues``), so doorways leave it to those who run the
installation. Workers hear of it by themselves.
"""

from __future__ import annotations

import logging

from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.limits import REASON_LIMIT_CHARACTERS
from longshore.core.remarks import problem_of_remark
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.ports.queues import PausedQueue

logger = logging.getLogger(__name__)


class Pausing:
    """Pauses queues and resumes them."""

    def __init__(self, backend: Backend) -> None:
        self._queues = backend.queues
        self._clock = backend.clock

    async def pause(self, name: str, *, by: str, reason: str | None = None) -> PausedQueue:
        """From now on nothing of the queue is begun, what runs goes on; the pause that holds.

        That may be an earlier one, of somebody else: then this changes nothing.

        Raises:
            UsageError: no queue can be called so, or the reason is too long or no text.
        """
        _check(name)
        reason = reason if reason and reason.strip() else None
        if reason and (problem := problem_of_remark(reason, limit=REASON_LIMIT_CHARACTERS)):
            message = f"the reason {problem}"
            raise UsageError(message)
        held = await self._queues.pause(name, by=by, reason=reason, now=self._clock.now())
        extra = {"queue": name, "by": by, "held_by": held.by, "reason": held.reason}
        logger.warning("queue.paused", extra=extra)
        return held

    async def resume(self, name: str, *, by: str) -> PausedQueue | None:
        """The queue is served again; the pause, or else the hold, that this has ended; or None.

        Raises:
            UsageError: no queue can be called so.
        """
        _check(name)
        ended = await self._queues.resume(name)
        if ended is not None:
            extra = {"queue": name, "by": by, "paused_by": ended.by, "reason": ended.reason}
            logger.warning("queue.resumed", extra=extra)
        return ended

    async def paused(self) -> list[PausedQueue]:
        """Every pause and every hold that stands, by the name of the queue."""
        return await self._queues.paused()


def _check(name: str) -> None:
    if not is_name(name):
        message = f"the name of a queue must match {NAME_PATTERN.pattern}"
        raise UsageError(message)
