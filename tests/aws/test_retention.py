"""Retention on AWS: tombstones in the ledger's table, and what a removal deletes."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.aws.blobs import S3BlobStore
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.adapters.aws.retention import DynamoRetention
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.retention import OTHER_EVENTS_AGE, RetentionContract
from tests.aws.backends import AwsContract, CaughtUpEventLog, on_aws


class CaughtUpRetention:
    """Removals after all events were saved: on AWS, that takes less time than a job is kept."""

    def __init__(self, retention: DynamoRetention, log: CaughtUpEventLog) -> None:
        self._retention = retention
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._retention, name)

    async def remove_jobs(self, job_ids: Sequence[str], **times: Any) -> list[str]:
        await self._log.catch_up()
        return await self._retention.remove_jobs(job_ids, **times)


def _retention(aws: AwsClient, names: Names, clock: FakeClock) -> DynamoRetention:
    ledger = DynamoLedger(aws, names, clock)
    return DynamoRetention(aws, names, clock, ledger, S3BlobStore(aws, names))


@asynccontextmanager
async def retention_backend(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Backend]:
    """A backend with all ports that a removal is about."""
    opened = on_aws(
        tmp_path,
        clock,
        ledger=DynamoLedger,
        events=partial(DynamoEventLog, retention=OTHER_EVENTS_AGE),
        output=DynamoOutputLog,
        blobs=lambda aws, names, _: S3BlobStore(aws, names),
        retention=_retention,
    )
    async with opened as backend:
        retention: Any = CaughtUpRetention(backend.retention, backend.events)  # type: ignore[arg-type]
        yield replace(backend, retention=retention)


class TestDynamoRetention(AwsContract, RetentionContract):
    make_backend = staticmethod(retention_backend)
