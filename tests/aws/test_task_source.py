"""The contract of the task source over SQS and DynamoDB."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.queue.task_queue import SqsTaskQueue
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import advance_until_done
from longshore.testing.contracts.task_source import TaskSourceContract
from tests.aws.backends import QUEUES, AwsContract, on_aws


class TestAwsTaskSource(AwsContract, TaskSourceContract):
    joint = False

    @asynccontextmanager
    async def make_backend(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
        ports = {"ledger": DynamoLedger, "queue": SqsTaskQueue}
        async with on_aws(tmp_path, clock, queues=QUEUES, **ports) as backend:
            try:
                yield backend
            finally:
                # Long polls end in the clock's time, which moves only when a test advances it.
                closing = asyncio.create_task(backend.require_queue().close())
                await advance_until_done(closing, clock, step=timedelta(seconds=20))
