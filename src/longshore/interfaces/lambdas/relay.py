"""relay: the ledger's stream → the bus; answers the first record that must come again."""

from __future__ import annotations

import logging
from typing import Any

from longshore.interfaces.lambdas.batches import Answer, failures, records_in
from longshore.interfaces.lambdas.container import Container, Context, OutOfTime
from longshore.wiring.functions import relaying

logger = logging.getLogger(__name__)
container = Container(relaying)


def handler(event: Any, context: Context) -> Answer:
    """Tell the bus of what was committed."""
    records = records_in(event)
    try:
        first = container.run(lambda relay: relay.tell(records), context)
    except OutOfTime as error:
        logger.warning("batch.out_of_time", extra={"error": str(error)})
        first = records[0]["dynamodb"]["SequenceNumber"]
    return failures([first] if first is not None else [])
