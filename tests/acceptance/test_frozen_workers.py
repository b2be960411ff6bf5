"""A process of a worker is stopped for longer than its lease: attempts never overlap."""

import asyncio
from pathlib import Path

import pytest

from verification.freeze import FreezeRun


@pytest.mark.timeout(300)
def test_no_attempts_overlap_while_a_process_of_a_worker_is_stopped(tmp_path: Path) -> None:
    run = FreezeRun(tmp_path)

    # The worker with a child for each task, the fork server with a pool, a reaper of a new process.
    asyncio.run(run.run((0, 5, 10)))

    assert run.takeovers == 1
