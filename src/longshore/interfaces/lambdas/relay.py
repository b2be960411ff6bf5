"""relay: the ledger's stream → the bus; answers the first record that must come again."""

from __future__ import annotations

import logging
from typing import Any

from longshore.interfaces.lambdas.batches import BatchResponse, failure_response, records_of
from longshore.interfaces.lambdas.container import Container, InvocationTimeout, LambdaContext
from longshore.wiring.lambdas import open_relay

logger = logging.getLogger(__name__)
container = Container(open_relay)


def handler(event: Any, context: LambdaContext) -> BatchResponse:
    """Tell the bus of what was committed."""
    records = records_of(event)
    try:
        first = container.run(lambda relay: relay.publish(records), context)
    except InvocationTimeout as error:
        logger.warning("batch.timed_out", extra={"error": str(error)})
        first = records[0]["dynamodb"]["SequenceNumber"]
    return failure_response([first] if first is not None else [])
