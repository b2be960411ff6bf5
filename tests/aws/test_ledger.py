"""The contract of the ledger in DynamoDB, and its handling of DynamoDB's own behaviour."""

from collections import Counter
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from longshore.adapters.aws.events.event_log import DynamoEventLog
from longshore.adapters.aws.ledger.items import bucket_of, buckets_of
from longshore.adapters.aws.ledger.ledger import DynamoLedger
from longshore.core.ids import job_id_of, new_request_id, task_id_of
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.ledger import (
    LedgerContract,
    LedgerSharedContract,
    QueuedLedgerContract,
    SingleChangeLedgerContract,
)
from tests.aws.backends import AwsContract, on_aws


class _AwsBackend(AwsContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock, ledger=DynamoLedger, events=DynamoEventLog)


class TestDynamoLedger(
    _AwsBackend, LedgerContract, QueuedLedgerContract, SingleChangeLedgerContract
):
    pass


class TestDynamoLedgerShared(_AwsBackend, LedgerSharedContract):
    pass


def test_jobs_of_one_moment_are_spread_over_the_buckets() -> None:
    jobs = [job_id_of("acme", new_request_id(1_790_000_000_000, n)) for n in range(3_200)]

    counts = Counter(bucket_of(job) for job in jobs)

    assert len(counts) == 32
    assert max(counts.values()) < 3 * 100
    assert all(bucket_of(task_id_of(job, "a_b")) == bucket_of(job) for job in jobs)


def test_a_prefix_is_searched_in_every_bucket_that_can_have_it() -> None:
    job = job_id_of("acme", "nightly")

    for length in range(len(job)):
        assert bucket_of(job) in buckets_of(job[:length])
        assert bucket_of("other") in buckets_of("other"[:length])
    assert buckets_of(job) == buckets_of(task_id_of(job, "a")) == bucket_of(job)
