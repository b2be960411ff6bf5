"""A worker is killed during a task, repeatedly; another worker takes over, nothing is done twice.

How soon is a figure and no assertion, as machines are noisy: ``python -m benchmarks --only
takeover`` measures a hundred kills against what is wanted, here a few are printed.
"""

import asyncio
from pathlib import Path

import pytest

from benchmarks.system import open_system
from benchmarks.takeover import Takeover, distribution, takeovers
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from tests.acceptance.history_checks import read_checked_history, starts

KILLS = 10


@pytest.mark.timeout(300)
def test_a_task_whose_worker_is_killed_runs_again_on_the_other_and_completes_once(
    tmp_path: Path,
) -> None:
    async def scenario() -> list[Takeover]:
        kills = await takeovers(tmp_path, KILLS)
        async with open_system(tmp_path) as services:
            for kill in kills:
                await _taken_over(services.backend, kill)
        return kills

    kills = asyncio.run(scenario())

    assert len(kills) == KILLS
    for name, value in distribution([kill.started_ms for kill in kills]).items():
        print(f"from the kill to the next start, {name}: {value:.0f} ms")  # noqa: T201 - a figure


async def _taken_over(backend: Backend, kill: Takeover) -> None:
    row, history = await read_checked_history(backend, kill.task_id)
    first, second = (event.body for event in starts(history))
    assert row.state is TaskState.COMPLETED
    assert [event.type for event in history if event.type != "Task Heartbeat"] == [
        "Task Pending",
        "Task Processing Started",
        "Task Processing Failed",
        "Task Processing Started",
        "Task Completed",
    ]
    assert first.process_id == kill.killed
    assert second.process_id != kill.killed
    # The death of the worker was detected: the takeover did not wait for the end of its lease.
    assert second.started_at < first.effective_until
    # Both began, and only the second came to its end.
    assert kill.lines == ("1", "2", "end")
