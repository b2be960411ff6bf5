"""A child is stopped with all of its kin, and nothing of an attempt is left behind."""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from longshore.execution.host.attempt import ProcessAttempt
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.process_table import group_members, is_alive
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    NEVER_NS,
    NO_GRACE,
    a_call,
    a_command,
    a_script,
    output_text,
    reports_of,
    run_attempt,
    scenario,
    wait_until,
)

LONG_GRACE = timedelta(seconds=20)


@scenario
async def test_a_grandchild_that_holds_the_pipes_does_not_hang_us_and_is_killed(
    runner: ProcessRunner,
) -> None:
    ending, reports = await run_attempt(runner, a_script("sleep 1000 & echo $!"))

    assert ending.failure is None
    assert not is_alive(int(output_text(reports)))


@scenario
async def test_a_grandchild_in_a_group_of_its_own_is_killed_too(runner: ProcessRunner) -> None:
    script = "set -m; sleep 1000 >/dev/null 2>&1 & echo $!"

    _, reports = await run_attempt(runner, a_command("bash", "-c", script))

    assert not is_alive(int(output_text(reports)))


@scenario
async def test_a_process_in_another_session_with_the_pipes_ends_with_the_attempt(
    runner: ProcessRunner,
) -> None:
    script = (
        "setsid sh -c 'echo $$; while :; do echo noise; sleep 0.01; done' & sleep 0.2; echo end"
    )
    async with running_attempt(runner, a_script(script)) as attempt:
        reports = await reports_of(attempt)
        ending = await attempt.ending()
    text = output_text(reports)

    assert ending.failure is None
    assert "end\n" in text
    assert not is_alive(int(text.split()[0]))


@scenario
async def test_stopping_first_sends_sigterm_to_the_whole_group(runner: ProcessRunner) -> None:
    script = "trap 'echo bye; exit 0' TERM; sleep 1000 & echo $!; wait"
    async with running_attempt(runner, a_script(script)) as attempt:
        reports = attempt.reports()
        grandchild = int(output_text([await anext(reports)]))

        ended_by = await attempt.stop(grace=LONG_GRACE)
        rest = [report async for report in reports]

    assert ended_by == "SIGTERM"
    assert output_text(rest) == "bye\n"
    assert not is_alive(attempt.process_id)
    assert not is_alive(grandchild)


@scenario
async def test_stopping_signals_a_grandchild_whose_parent_waits_for_it(
    runner: ProcessRunner,
) -> None:
    # The parent handles SIGTERM and does not forward it.
    script = """
    trap : TERM
    sh -c 'trap "echo stopped; exit" TERM; echo ready; sleep 1000 & wait' &
    wait; wait; exit 0
    """
    async with running_attempt(runner, a_script(script)) as attempt:
        reports = attempt.reports()
        ready = output_text([await anext(reports)])

        ended_by = await attempt.stop(grace=LONG_GRACE)
        rest = [report async for report in reports]

    assert ready == "ready\n"
    assert output_text(rest) == "stopped\n"
    assert ended_by == "SIGTERM"


@scenario
async def test_a_child_that_ignores_sigterm_is_killed_after_the_grace_period(
    runner: ProcessRunner,
) -> None:
    async with running_attempt(runner, a_call("ignores_sigterm")) as attempt:
        reports = attempt.reports()
        ready = output_text([await anext(reports)])

        ended_by = await attempt.stop(grace=timedelta(milliseconds=100))
        ending = await attempt.ending()

    assert ready == "ready\n"
    assert ended_by == "SIGKILL"
    assert ending.failure is not None
    assert ending.failure.signal == "SIGKILL"
    assert group_members(attempt.process_id) == []


@scenario
async def test_a_second_less_patient_stop_does_not_wait_for_the_first(
    runner: ProcessRunner,
) -> None:
    async with running_attempt(runner, a_call("ignores_sigterm")) as attempt:
        await anext(attempt.reports())
        patient = asyncio.ensure_future(attempt.stop(grace=timedelta(hours=1)))
        await asyncio.sleep(0)

        ended_by = await attempt.stop(grace=NO_GRACE)

        assert ended_by == "SIGKILL"
        assert await patient == "SIGKILL"


@scenario
async def test_stopping_one_that_has_ended_is_nothing(runner: ProcessRunner) -> None:
    async with running_attempt(runner, a_command("true")) as attempt:
        await reports_of(attempt)

        await attempt.stop(grace=LONG_GRACE)
        ending = await attempt.ending()

    assert ending.failure is None


@scenario
async def test_a_child_whose_reports_are_not_read_can_be_stopped(
    runner: ProcessRunner,
) -> None:
    async with running_attempt(runner, a_command("yes")) as attempt:
        reports = attempt.reports()
        await anext(reports)
        await wait_until(blocked_writer(attempt.process_id))
        held_up_at = written_by(attempt.process_id)

        await reports.aclose()
        await wait_until(lambda: written_by(attempt.process_id) > held_up_at + 20_000_000)
        async with asyncio.timeout(10):
            await attempt.stop(grace=NO_GRACE)

    assert not is_alive(attempt.process_id)


def blocked_writer(process_id: int) -> Callable[[], bool]:
    """Whether it has written nothing for some looks: its pipe is full."""
    seen: list[int] = []

    def look() -> bool:
        seen.append(written_by(process_id))
        return len(seen) > 10 and len(set(seen[-10:])) == 1

    return look


def written_by(process_id: int) -> int:
    """Bytes that the process has written so far."""
    lines = Path(f"/proc/{process_id}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("wchar"))


@scenario
async def test_memory_of_a_living_child_is_known(runner: ProcessRunner) -> None:
    async with running_attempt(runner, a_call("ignores_sigterm")) as attempt:
        await anext(attempt.reports())
        living = attempt.rss_bytes()
        await attempt.stop(grace=NO_GRACE)

    assert living > 1_000_000
    assert attempt.rss_bytes() == 0


@scenario
async def test_no_file_is_left_open_by_an_attempt(runner: ProcessRunner) -> None:
    await run_attempt(runner, a_command("true"))
    before = len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        await run_attempt(runner, a_script("sleep 1000 & exit 3"))

    assert len(os.listdir("/proc/self/fd")) == before


@scenario
async def test_a_start_that_is_cancelled_leaves_no_child(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    for turns in range(12):
        spec = a_script("sleep 1000", attempt=turns + 1)
        starting = asyncio.ensure_future(runner.start(spec, deadline_ns=NEVER_NS))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        (ended,) = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(ended, ProcessAttempt):
            await ended.stop(grace=NO_GRACE)

    await wait_until(lambda: not any(str(tmp_path) in command for command in commands()))


def commands() -> Iterator[str]:
    """The command line of every process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (folder / "cmdline").read_text()
