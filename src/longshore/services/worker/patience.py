"""Patience: what was worked for is not thrown away for a moment's trouble of the store."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from longshore.errors import BackendUnavailable
from longshore.services.worker.tools import Tools

logger = logging.getLogger(__name__)

_AFTER_TROUBLE = timedelta(seconds=1)

ResultT = TypeVar("ResultT")


async def insistently(
    tools: Tools, task_id: str, call: Callable[[], Awaitable[ResultT]], *, patience: timedelta
) -> ResultT:
    """Repeat a call through an outage.

    The work is done: to give up on it would mean paying for it twice.
    """
    clock = tools.backend.clock
    patient_until = clock.elapsed() + patience
    while clock.elapsed() < patient_until:
        try:
            return await call()
        except BackendUnavailable as error:
            logger.warning("outcome.waiting", extra={"task_id": task_id, "error": str(error)})
            await clock.sleep(_AFTER_TROUBLE)
    return await call()
