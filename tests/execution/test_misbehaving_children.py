"""Nasty children: each is ended on time, nothing of it is left, and the next child runs."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.definitions.definition import Isolation, ResourceLimits
from longshore.core.tasks.failures import ErrorCategory
from longshore.execution.host.attempt import ProcessAttempt
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.process_table import descendants, has_more_descendants
from longshore.ports.output import Stream
from longshore.ports.runner import AttemptEnding, AttemptSpec, OutputReport
from tests.execution.attempts import running_attempt
from tests.execution.conftest import (
    NO_GRACE,
    a_call,
    a_command,
    output_text,
    run_attempt,
    scenario,
    wait_until,
)
from tests.execution.process_tree import all_idle, reapers_of
from tests.interfaces.command_line import is_alive

MISBEHAVING = "tests.execution.misbehaving_functions"
GRACE = timedelta(milliseconds=200)
MEGABYTE = 2**20


def misbehaving(name: str, *args: Any, **fields: Any) -> AttemptSpec:
    function = {"function": f"{MISBEHAVING}:{name}"}
    return a_call(name, *args, input=function, definition=fields)


@asynccontextmanager
async def leaves_no_processes(runner: ProcessRunner) -> AsyncIterator[None]:
    await run_attempt(runner, a_command("true"))
    yield
    # Only reapers are alive: no process was left behind.
    await wait_until(lambda: all_idle(runner))
    ending, reports = await run_attempt(runner, a_command("echo", "healthy"))
    assert ending.failure is None
    assert output_text(reports) == "healthy\n"


async def wait_ready(attempt: ProcessAttempt) -> None:
    async for report in attempt.reports():
        if isinstance(report, OutputReport) and b"ready" in report.data:
            return


def _state_of(process_id: int) -> str:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2][0]


@pytest.mark.parametrize(
    ("name", "ended_by"),
    [
        ("ignores_sigterm", "SIGKILL"),
        ("closes_its_pipes_and_sleeps", "SIGTERM"),
        ("stops_itself", "SIGKILL"),
    ],
)
@scenario
async def test_a_child_that_refuses_to_end_is_killed(
    runner: ProcessRunner, name: str, ended_by: str
) -> None:
    async with leaves_no_processes(runner), running_attempt(runner, misbehaving(name)) as attempt:
        await wait_ready(attempt)
        if name == "stops_itself":
            # It says so a moment before it does.
            await wait_until(lambda: _state_of(attempt.process_id) == "T")

        assert await attempt.stop(grace=GRACE) == ended_by
        assert not is_alive(attempt.process_id)


@pytest.mark.parametrize(
    "name",
    [
        "leaves_a_daemon_with_the_pipes",
        "leaves_a_daemon_without_a_trace",
        "forks_a_hundred",
    ],
)
@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@scenario
async def test_no_process_that_a_child_leaves_behind_outlives_the_attempt(
    runner: ProcessRunner, name: str, isolation: Isolation
) -> None:
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(runner, misbehaving(name, isolation=isolation))

        assert ending.result == "done"


@scenario
async def test_a_child_above_its_memory_limit_is_out_of_memory(runner: ProcessRunner) -> None:
    limits = ResourceLimits(memory_bytes=128 * MEGABYTE)
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(runner, misbehaving("allocates", 512, resources=limits))

        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.OUT_OF_MEMORY
        assert ending.peak_rss_bytes


@scenario
async def test_processes_that_together_exceed_the_limit_are_out_of_memory(
    runner: ProcessRunner,
) -> None:
    limits = ResourceLimits(memory_bytes=256 * MEGABYTE)
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(
            runner, misbehaving("grows_in_many", 4, 100, resources=limits)
        )

        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.OUT_OF_MEMORY
        assert "its definition allows 256 MB" in ending.failure.message
        assert (ending.peak_rss_bytes or 0) > 256 * MEGABYTE


@scenario
async def test_a_child_below_its_memory_limit_is_not_killed(runner: ProcessRunner) -> None:
    limits = ResourceLimits(memory_bytes=256 * MEGABYTE)

    ending, _ = await run_attempt(runner, misbehaving("allocates", 64, resources=limits))

    assert ending.result == 64 * MEGABYTE


@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@pytest.mark.parametrize("detached", [False, True])
@scenario
async def test_an_attempt_with_too_many_processes_is_ended(
    runner: ProcessRunner, detached: bool, isolation: Isolation
) -> None:
    limits = ResourceLimits(processes=50)
    async with leaves_no_processes(runner):
        spec = misbehaving("fork_bomb", 200, resources=limits, isolation=isolation)
        spec.input["kwargs"] = {"detached": detached}
        ending, _ = await run_attempt(runner, spec)

        assert ending.failure is not None
        assert not ending.failure.retryable
        assert "more than 50 processes" in ending.failure.message
        assert "resources.processes" in ending.failure.message


@scenario
async def test_a_definition_can_allow_more_processes_than_the_worker(runner: ProcessRunner) -> None:
    runner.max_processes = 2
    script = "sleep 1000 & sleep 1000 & sleep 1000 & echo ready; wait"
    limits = ResourceLimits(processes=10)

    async with running_attempt(runner, a_command("sh", "-c", script)) as attempt:
        reports = [report async for report in attempt.reports()]
        failure = (await attempt.ending()).failure
    async with running_attempt(
        runner, a_command("sh", "-c", script, definition={"resources": limits})
    ) as attempt:
        await wait_ready(attempt)
        reaper = reapers_of(runner)[0]
        await wait_until(lambda: len(descendants(reaper)) == 4)

        assert not has_more_descendants(reaper, 4)
        assert has_more_descendants(reaper, 3)

    assert output_text(reports) == "ready\n"
    assert failure is not None
    assert "more than 2 processes" in failure.message


@pytest.mark.parametrize(("name", "megabytes"), [("writes", 1024), ("writes_one_line", 64)])
@scenario
async def test_large_output_is_complete(runner: ProcessRunner, name: str, megabytes: int) -> None:
    async with (
        leaves_no_processes(runner),
        running_attempt(runner, misbehaving(name, megabytes)) as attempt,
    ):
        size = largest = 0
        async for report in attempt.reports():
            if isinstance(report, OutputReport) and report.stream is Stream.STDOUT:
                size += len(report.data)
                largest = max(largest, len(report.data))
        ending = await attempt.ending()

    assert ending.failure is None
    assert size // MEGABYTE == megabytes
    assert largest <= MEGABYTE


@pytest.mark.parametrize(
    ("name", "signal"), [("segfaults", "SIGSEGV"), ("exits_without_a_word", None)]
)
@pytest.mark.parametrize("isolation", [Isolation.FORK, Isolation.SPAWN])
@scenario
async def test_a_child_that_exits_without_a_report_has_crashed(
    runner: ProcessRunner, name: str, signal: str | None, isolation: Isolation
) -> None:
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(runner, misbehaving(name, isolation=isolation))

        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.CRASH
        assert ending.failure.signal == signal


def _text(ending: AttemptEnding) -> str:
    assert ending.failure is not None
    return f"{ending.failure.error_type} {ending.failure.message}"


@scenario
async def test_a_file_beyond_its_size_is_not_written(runner: ProcessRunner) -> None:
    limits = ResourceLimits(file_bytes=MEGABYTE)
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(runner, misbehaving("writes_a_file", 2048, resources=limits))
        of_a_command, _ = await run_attempt(
            runner,
            a_command("head", "-c", "2000000", "/dev/zero", definition={"resources": limits}),
        )
        written, _ = await run_attempt(
            runner,
            a_command(
                "sh",
                "-c",
                "head -c 2000000 /dev/zero > big; code=$?; wc -c < big; exit $code",
                definition={"resources": limits},
            ),
        )

        assert "File too large" in _text(ending)
        assert of_a_command.failure is None  # a pipe is no file
        assert written.failure is not None


@scenario
async def test_a_child_above_its_cpu_limit_is_killed(runner: ProcessRunner) -> None:
    limits = ResourceLimits(cpu=timedelta(seconds=1))
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(runner, misbehaving("burns_cpu", resources=limits))

        assert ending.failure is not None
        assert ending.failure.signal == "SIGXCPU"


@scenario
async def test_a_child_cannot_open_more_files_than_its_limit(runner: ProcessRunner) -> None:
    limits = ResourceLimits(open_files=64)
    async with leaves_no_processes(runner):
        ending, _ = await run_attempt(runner, misbehaving("opens_files", 100, resources=limits))

        assert "Too many open files" in _text(ending)


@scenario
async def test_a_child_may_have_a_terminal(runner: ProcessRunner) -> None:
    async with leaves_no_processes(runner):
        ending, reports = await run_attempt(runner, misbehaving("is_a_terminal", pty=True))

        assert ending.result == [True, True, True]
        assert output_text(reports) == "to the terminal\nerrors too\n"


@scenario
async def test_no_process_of_an_attempt_survives_the_killed_fork_server(
    runner: ProcessRunner,
) -> None:
    async with running_attempt(runner, misbehaving("ignores_sigterm")) as attempt:
        await wait_ready(attempt)
        fork_server = runner.forkserver.process_id
        assert fork_server is not None
        os.kill(fork_server, 9)
        ending = await attempt.ending()

        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.CRASH
    await wait_until(lambda: not is_alive(attempt.process_id))
    after, _ = await run_attempt(runner, a_command("true"))
    assert after.failure is None


@scenario
async def test_no_process_of_an_attempt_survives_its_killed_reaper(
    runner: ProcessRunner,
) -> None:
    spec = misbehaving("hides_a_daemon_and_stays")
    async with leaves_no_processes(runner), running_attempt(runner, spec) as attempt:
        await wait_ready(attempt)
        (reaper,) = (item for item in reapers_of(runner) if attempt.process_id in descendants(item))
        os.kill(reaper, 9)
        ending = await attempt.ending()

        assert ending.failure is not None
        assert ending.failure.category is ErrorCategory.CRASH
        assert not is_alive(attempt.process_id)
        await attempt.stop(grace=NO_GRACE)
