"""The AWS backend: every port on SQS, DynamoDB, S3 and EventBridge."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Set
from datetime import timedelta

from longshore.adapters.aws.blobs import S3BlobStore
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.config_stores import (
    DynamoApiKeys,
    DynamoBudgets,
    DynamoDefinitions,
    DynamoQueueControls,
)
from longshore.adapters.aws.events.event_bus import EventBridgeBus
from longshore.adapters.aws.events.event_log import DEFAULT_INDEXES, DynamoEventLog
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.adapters.aws.queue.task_queue import SqsTaskQueue
from longshore.adapters.aws.retention import DynamoRetention
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock

_IDLE_POLL = timedelta(seconds=2)


@contextlib.asynccontextmanager
async def aws_backend(
    aws: AwsClient,
    names: Names,
    clock: Clock,
    *,
    shards: int = 4,
    other_events_retention: timedelta | None = None,
    event_indexes: Set[int] = DEFAULT_INDEXES,
) -> AsyncIterator[Backend]:
    """Everything of one installation; at the end what was taken from queues is given back.

    Args:
        shards: Of the index keys that many rows share; may grow, never shrink.
        other_events_retention: How long events without a job are kept; None: forever.
    """
    ledger, blobs = DynamoLedger(aws, names, clock, shards=shards), S3BlobStore(aws, names)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(aws.close)
        bus, queue = EventBridgeBus(aws, names, clock), SqsTaskQueue(aws, names, clock)
        stack.push_async_callback(bus.close)
        stack.push_async_callback(queue.close)
        yield Backend(
            name="aws",
            clock=clock,
            ledger=ledger,
            queue=queue,
            queue_controls=DynamoQueueControls(aws, names, clock),
            events=DynamoEventLog(
                *(aws, names, clock, bus),
                retention=other_events_retention,
                indexes=event_indexes,
            ),
            bus=bus,
            output=DynamoOutputLog(aws, names, clock),
            blobs=blobs,
            definitions=DynamoDefinitions(aws, names),
            keys=DynamoApiKeys(aws, names),
            budgets=DynamoBudgets(aws, names),
            retention=DynamoRetention(aws, names, clock, ledger, blobs, shards=shards),
            idle_poll_limit=_IDLE_POLL,
        )
