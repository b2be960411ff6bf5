"""Guards are used again, and one that is lost is replaced."""

import asyncio
import os
import signal
from itertools import chain
from pathlib import Path

import pytest

from longshore.errors import BackendUnavailable
from longshore.execution.host.forkserver_client import ForkedReaper
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.process_table import descendants
from longshore.ports.runner import AttemptSpec
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    NEVER_NS,
    a_call,
    a_command,
    a_script,
    output_text,
    run_attempt,
    scenario,
    wait_until,
)
from tests.execution.process_tree import reapers_of
from tests.interfaces.command_line import is_alive


def a_sum(number: int) -> AttemptSpec:
    return a_call("add", number, 1, task_id=f"job-a_{number}")


@scenario
async def test_consecutive_attempts_need_one_reaper(runner: ProcessRunner) -> None:
    results = [(await run_attempt(runner, a_sum(number)))[0].result for number in range(30)]

    assert results == list(range(1, 31))
    assert len(reapers_of(runner)) == 1


@scenario
async def test_as_many_reapers_are_kept_as_attempts_ran_at_once(runner: ProcessRunner) -> None:
    for _ in range(5):
        await asyncio.gather(*(run_attempt(runner, a_sum(number)) for number in range(4)))

    assert len(reapers_of(runner)) == 4


@scenario
async def test_an_idle_reaper_that_is_killed_is_replaced(runner: ProcessRunner) -> None:
    await run_attempt(runner, a_command("true"))
    reapers = reapers_of(runner)
    ending = [*reapers, *(child for reaper in reapers for child in descendants(reaper))]
    for reaper in reapers:
        os.kill(reaper, signal.SIGKILL)
    # Until the fork server has noticed it, and the child that waited for an attempt is dead too.
    await wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in ending))
    # Until the worker has noticed it: an attempt that was given to a dead reaper is released.
    await wait_until(lambda: not any(slot.is_alive for slot in chain(*runner._free_slots.values())))

    result, _ = await run_attempt(runner, a_command("true"))

    assert result.failure is None
    assert not set(reapers) & set(reapers_of(runner))


@scenario
async def test_an_attempt_whose_reaper_cannot_be_reached_is_not_started(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run_attempt(runner, a_command("true"))
    with monkeypatch.context() as patch:
        patch.setattr(ForkedReaper, "wake", lambda _: False)
        with pytest.raises(BackendUnavailable):
            await runner.start(a_command("true"), deadline_ns=NEVER_NS)
    await wait_until(lambda: not reapers_of(runner))

    ending, _ = await run_attempt(runner, a_command("true"))

    assert ending.failure is None


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
