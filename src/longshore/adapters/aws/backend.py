"""The AWS backend: every port on SQS, DynamoDB, S3 and EventBridge."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Set
from dataclasses import dataclass
from datetime import timedelta

from longshore.adapters.aws.accounts import DynamoAccounts
from longshore.adapters.aws.blobs import S3BlobStore
from longshore.adapters.aws.bus import EventBridgeBus
from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.definitions import DynamoDefinitions
from longshore.adapters.aws.event_walks import FEW
from longshore.adapters.aws.events import DynamoEventLog
from longshore.adapters.aws.keys import DynamoKeys
from longshore.adapters.aws.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output import DynamoOutputLog
from longshore.adapters.aws.queue import SqsTaskQueue
from longshore.adapters.aws.queues import DynamoQueues
from longshore.ports.backend import Backend
from longshore.ports.clock import Clock

_IDLE_LOOK = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsOptions:
    """What an installation decides."""

    shards: int = 4  # of the index keys that many rows share; may grow, never shrink
    keeps_events: timedelta | None = None
    keeps_output: timedelta | None = timedelta(days=30)
    event_indexes: Set[int] = FEW


@contextlib.asynccontextmanager
async def aws_backend(
    aws: Aws, names: Names, clock: Clock, options: AwsOptions | None = None
) -> AsyncIterator[Backend]:
    """Everything of one installation; at the end what was taken from queues is given back."""
    wanted = options or AwsOptions()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(aws.close)
        bus = await stack.enter_async_context(EventBridgeBus(aws, names, clock))
        queue = await stack.enter_async_context(SqsTaskQueue(aws, names, clock))
        yield Backend(
            name="aws",
            clock=clock,
            ledger=DynamoLedger(aws, names, clock, shards=wanted.shards),
            queue=queue,
            queues=DynamoQueues(aws, names, clock),
            events=DynamoEventLog(
                *(aws, names, clock, bus),
                keeps=wanted.keeps_events,
                indexes=wanted.event_indexes,
            ),
            bus=bus,
            output=DynamoOutputLog(aws, names, clock, keeps=wanted.keeps_output),
            blobs=S3BlobStore(aws, names),
            definitions=DynamoDefinitions(aws, names),
            keys=DynamoKeys(aws, names),
            accounts=DynamoAccounts(aws, names),
            close=stack.aclose,
            idle_look=_IDLE_LOOK,
        )
