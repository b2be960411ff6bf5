"""Retention on AWS: an equal ``ttl`` on all items of a job, which is not written yet."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.retention import RetentionContract
from tests.aws.backends import AwsContract, on_aws


@pytest.mark.skip(reason="AWS removes no jobs yet")
class TestDynamoRetention(AwsContract, RetentionContract):
    def make_backend(
        self, tmp_path: Path, clock: FakeClock
    ) -> AbstractAsyncContextManager[Backend]:
        return on_aws(tmp_path, clock)
