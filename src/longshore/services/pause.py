"""Pauses and resumes queues.

A pause affects all tenants (see ``ports.configuration``), so interfaces allow it only to operators
of the installation. Workers notice it by themselves.
"""

from __future__ import annotations

import logging

from longshore.core.ids import NAME_PATTERN, is_name
from longshore.core.maximums import REASON_LIMIT_CHARACTERS, comment_problem
from longshore.errors import UsageError
from longshore.ports.backend import Backend
from longshore.ports.configuration import QueuePause

logger = logging.getLogger(__name__)


class QueuePauser:
    """Pauses queues and resumes them."""

    def __init__(self, backend: Backend) -> None:
        self._queues = backend.queue_controls
        self._clock = backend.clock

    async def pause_queue(self, name: str, *, by: str, reason: str | None = None) -> QueuePause:
        """Pause a queue: no task of it starts, running tasks continue. Returns the pause.

        If the queue is already paused, this changes nothing and returns the existing pause.

        Raises:
            UsageError: the name is invalid, or the reason is too long or not valid text.
        """
        _check_name(name)
        reason = reason if reason and reason.strip() else None
        if reason and (problem := comment_problem(reason, limit=REASON_LIMIT_CHARACTERS)):
            message = f"the reason {problem}"
            raise UsageError(message)
        pause = await self._queues.pause(name, by=by, reason=reason, now=self._clock.now())
        extra = {"queue": name, "by": by, "held_by": pause.by, "reason": pause.reason}
        logger.warning("queue.paused", extra=extra)
        return pause

    async def resume_queue(self, name: str, *, by: str) -> QueuePause | None:
        """Resume a queue. Returns the pause or hold that this ended, or None.

        Raises:
            UsageError: the name is invalid.
        """
        _check_name(name)
        ended = await self._queues.resume(name)
        if ended is not None:
            extra = {"queue": name, "by": by, "paused_by": ended.by, "reason": ended.reason}
            logger.warning("queue.resumed", extra=extra)
        return ended

    async def list_paused(self) -> list[QueuePause]:
        """Returns all pauses and holds, by the name of the queue."""
        return await self._queues.list_pauses()


def _check_name(name: str) -> None:
    if not is_name(name):
        message = f"the name of a queue must match {NAME_PATTERN.pattern}"
        raise UsageError(message)
