"""sweeper: a schedule → what crashes left behind is mended."""

from __future__ import annotations

import logging
from typing import Any

from longshore.interfaces.lambdas.container import Container, Context, OutOfTime
from longshore.services.sweeper import Repairs
from longshore.wiring.functions import Wired, wired

logger = logging.getLogger(__name__)
container = Container(wired)


def handler(event: Any, context: Context) -> dict[str, Any]:
    """Mend what can be found; where time is over, the next sweep goes on behind it."""
    try:
        repairs = container.run(_sweep, context)
    except OutOfTime as error:
        logger.warning("sweep.out_of_time", extra={"error": str(error)})
        return {"finished": False}
    return {"finished": True, "repaired": repairs.by_kind()}


async def _sweep(wired: Wired) -> Repairs:
    return await wired.services.sweeper.sweep()
