"""Guards are used again, and one that is lost is replaced."""

import asyncio
import os
import signal
from pathlib import Path

from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.process_table import descendants
from longshore.ports.runner import AttemptSpec
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    a_call,
    a_command,
    a_script,
    output_text,
    run_attempt,
    scenario,
    wait_until,
)
from tests.execution.process_tree import all_idle, reapers_of
from tests.interfaces.command_line import is_alive


def a_sum(number: int) -> AttemptSpec:
    return a_call("add", number, 1, task_id=f"job-a_{number}")


@scenario
async def test_consecutive_attempts_need_two_reapers(runner: ProcessRunner) -> None:
    results = [(await run_attempt(runner, a_sum(number)))[0].result for number in range(30)]

    assert results == list(range(1, 31))
    # While one reaper supervises an attempt, the other preforks its next child.
    assert len(reapers_of(runner)) == 2


@scenario
async def test_one_more_reaper_is_kept_than_attempts_ran_at_once(runner: ProcessRunner) -> None:
    for _ in range(5):
        await asyncio.gather(*(run_attempt(runner, a_sum(number)) for number in range(4)))

    assert len(reapers_of(runner)) == 5


@scenario
async def test_an_idle_reaper_that_is_killed_is_replaced(runner: ProcessRunner) -> None:
    await run_attempt(runner, a_command("true"))
    reapers = reapers_of(runner)
    for reaper in reapers:
        os.kill(reaper, signal.SIGKILL)
    # Until the fork server has noticed it.
    await wait_until(lambda: not any(Path(f"/proc/{reaper}").exists() for reaper in reapers))

    ending, _ = await run_attempt(runner, a_command("true"))

    assert ending.failure is None
    assert not set(reapers) & set(reapers_of(runner))


@scenario
async def test_a_leader_that_is_killed_while_it_waits_is_replaced(runner: ProcessRunner) -> None:
    await run_attempt(runner, a_command("true"))
    await wait_until(lambda: all_idle(runner))
    for reaper in reapers_of(runner):
        (spare,) = descendants(reaper)
        os.kill(spare, signal.SIGKILL)
        # One that dies with its files already in hand has died at work.
        await wait_until(lambda spare=spare: not is_alive(spare))

    endings = [(await run_attempt(runner, a_sum(number)))[0] for number in range(4)]

    assert [ending.result for ending in endings] == [1, 2, 3, 4]
    await wait_until(lambda: all_idle(runner))


@scenario
async def test_a_preforked_child_has_only_the_socket_to_its_reaper(
    runner: ProcessRunner,
) -> None:
    await run_attempt(runner, a_command("true"))
    await wait_until(lambda: all_idle(runner))

    for reaper in reapers_of(runner):
        (spare,) = descendants(reaper)
        waiting = [os.readlink(file) for file in Path(f"/proc/{spare}/fd").iterdir()]
        others = [name for name in waiting if name != os.devnull]
        # Its errors are the worker's until it has an attempt's.
        assert sum(name.startswith("socket:") for name in others) == 1
        assert len(others) <= 2


@scenario
async def test_a_daemon_does_not_outlive_an_attempt_whose_reaper_was_killed(
    runner: ProcessRunner,
) -> None:
    # In a session of its own, with none of the pipes, and its parent has ended.
    script = """
    setsid sh -c 'sleep 1000 >/dev/null 2>&1 3>&- 4<&- & echo $!'
    exec sleep 1000
    """
    async with running_attempt(runner, a_script(script)) as attempt:
        daemon = int(output_text([await anext(attempt.reports())]))
        below = descendants(runner.forkserver.process_id or 0)
        (reaper,) = (item for item in below if attempt.process_id in descendants(item))

        os.kill(reaper, signal.SIGKILL)
        ending = await attempt.ending()
        outlived = is_alive(daemon)
        if outlived:
            os.kill(daemon, signal.SIGKILL)

    assert daemon in below
    assert ending.failure is not None
    assert not outlived
