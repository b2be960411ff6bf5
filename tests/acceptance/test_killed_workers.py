"""Of several workers, one after the other is killed at any moment; every task completes once."""

import asyncio
from pathlib import Path

import pytest

from tests.acceptance.killed_workers import TASKS, KilledWorkers

KILLS = 8


@pytest.mark.timeout(300)
def test_workers_that_are_killed_at_random_lose_nothing_and_begin_no_attempt_twice(
    tmp_path: Path,
) -> None:
    workers = KilledWorkers(tmp_path, seed=0)

    asyncio.run(workers.run(KILLS))

    assert workers.kills == KILLS
    # Kills that meet no task prove nothing.
    assert workers.begun > TASKS
