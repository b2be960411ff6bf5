"""sweeper: a schedule → what crashes left behind is mended."""

from __future__ import annotations

import logging
from typing import Any

from longshore.interfaces.lambdas.container import Container, InvocationTimeout, LambdaContext
from longshore.services.sweeper import Repairs
from longshore.wiring.lambdas import LambdaServices, open_lambda_services

logger = logging.getLogger(__name__)
container = Container(open_lambda_services)


def handler(event: Any, context: LambdaContext) -> dict[str, Any]:
    """Mend what can be found; where time is over, the next sweep goes on behind it."""
    try:
        repairs = container.run(_sweep, context)
    except InvocationTimeout as error:
        logger.warning("sweep.timed_out", extra={"error": str(error)})
        return {"finished": False}
    return {"finished": True, "repaired": repairs.by_kind()}


async def _sweep(wired: LambdaServices) -> Repairs:
    return await wired.sweeper.sweep()
