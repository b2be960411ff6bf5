"""Holding: when the model's API asks to be left alone, nothing else of the queue knocks meanwhile.

All agents of an installation show the API one credential, so what was said to one of them is meant
for all. Other tasks may wait for anything, each for something else: they hold up nobody.

A hold is a hint. If it cannot be kept, the next task is told the same, and no outcome is at stake.
"""

from __future__ import annotations

import logging
from datetime import timedelta

from longshore.core import commands as c
from longshore.core.definition import RunnerKind
from longshore.core.failures import ErrorCategory
from longshore.core.rows import TaskRow
from longshore.errors import BackendUnavailable
from longshore.services.edges import stepped_over
from longshore.services.worker.outcomes import Outcome
from longshore.services.worker.tools import Tools

logger = logging.getLogger(__name__)

# Read by all whose tasks it holds up, so it tells nothing of the task that was turned away.
_WHY = "the model's API asks to be left alone: rate limit"


async def hold_queue(
    tools: Tools, row: TaskRow, runner: RunnerKind | None, outcome: Outcome
) -> None:
    """Hold the queue of an attempt that ended so, if the API has said for how long."""
    lasts = min(_asked_for(runner, outcome), tools.longest_hold)
    if lasts <= timedelta(0):
        return
    queue, now = row.spec.queue, tools.backend.clock.now()
    about = {"queue": queue, "task_id": row.id, "lasts": str(lasts)}
    with stepped_over(logger, "hold.broken", **about):
        try:
            held = await tools.backend.queues.hold(
                queue, until=now + lasts, by=tools.worker_id, reason=_WHY, now=now
            )
        except BackendUnavailable as error:
            logger.warning("hold.unavailable", extra={**about, "error": str(error)})
        else:
            logger.warning("queue.held", extra={**about, "until": str(held.until)})


def _asked_for(runner: RunnerKind | None, outcome: Outcome) -> timedelta:
    if runner is not RunnerKind.AGENT or not isinstance(outcome, c.AttemptFailed):
        return timedelta(0)
    failure = outcome.failure
    if failure.category is not ErrorCategory.RATE_LIMIT or failure.retry_after is None:
        return timedelta(0)
    return failure.retry_after
