"""Guards are used again, and one that is lost is replaced."""

import asyncio
import os
import signal
from pathlib import Path

from longshore.adapters.process.runner import ProcessRunner
from longshore.ports.runner import WorkOrder
from longshore.runners.keeper.kernel import descendants
from tests.adapters.process.conftest import a_call, a_command, run, scenario, until


def guards_of(runner: ProcessRunner) -> list[int]:
    """Of a keeper whose attempts are all over."""
    return sorted(descendants(runner.keeper.process_id or 0))


def a_sum(number: int) -> WorkOrder:
    return a_call("add", number, 1, task_id=f"job-a_{number}")


@scenario
async def test_one_attempt_after_another_needs_one_guard(runner: ProcessRunner) -> None:
    results = [(await run(runner, a_sum(number)))[0].result for number in range(30)]

    assert results == list(range(1, 31))
    assert len(guards_of(runner)) == 1


@scenario
async def test_as_many_guards_are_kept_as_attempts_ran_at_a_time(runner: ProcessRunner) -> None:
    for _ in range(5):
        await asyncio.gather(*(run(runner, a_sum(number)) for number in range(4)))

    assert len(guards_of(runner)) == 4


@scenario
async def test_a_guard_that_is_killed_while_it_is_free_is_replaced(runner: ProcessRunner) -> None:
    await run(runner, a_command("true"))
    (guard,) = guards_of(runner)
    os.kill(guard, signal.SIGKILL)
    # Until the keeper has noticed it.
    await until(lambda: not Path(f"/proc/{guard}").exists())

    ending, _ = await run(runner, a_command("true"))

    assert ending.failure is None
    assert guard not in guards_of(runner)
