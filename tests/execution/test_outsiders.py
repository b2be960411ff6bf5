"""A process outside the fork server that holds an attempt's pipes open delays nothing."""

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from longshore.execution.host.attempt import ProcessAttempt
from longshore.execution.host.launcher import ProcessRunner
from tests.execution.attempts import running_attempt
from tests.execution.conftest import a_call, reports_of, scenario, wait_until
from tests.interfaces.command_line import is_alive

MISBEHAVING = "tests.execution.misbehaving_functions"
PIPES = 3
# Much more than what a pipe and a queue hold, and what is printed while a child ends.
FOR_EVER = 2000


@asynccontextmanager
async def attempt_sharing_its_pipes(
    runner: ProcessRunner, folder: Path
) -> AsyncIterator[tuple[ProcessAttempt, Sequence[int], socket.socket]]:
    """A live child, its output, errors and channel, and what to close so that it ends."""
    address = str(folder / "outsider")
    function = {"function": f"{MISBEHAVING}:hands_on_its_pipes"}
    spec = a_call("", address, input=function)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        async with running_attempt(runner, spec) as attempt:
            child, _ = await asyncio.to_thread(listening.accept)
            pipes: list[int] = []
            with child:
                _, pipes, _, _ = socket.recv_fds(child, 16, PIPES)
                try:
                    yield attempt, pipes, child
                finally:
                    for pipe in pipes:
                        os.close(pipe)


@scenario
async def test_an_attempt_ends_although_another_process_holds_its_pipes_open(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    async with attempt_sharing_its_pipes(runner, tmp_path) as (attempt, pipes, child):
        child.close()
        reports = await reports_of(attempt)
        ending = await attempt.ending()

        assert len(pipes) == PIPES
        for pipe in pipes:
            with pytest.raises(BrokenPipeError):
                os.write(pipe, b"not read\n")
    assert ending.result == "done"
    assert reports == []


@scenario
async def test_a_process_outside_the_attempt_that_prints_without_end_does_not_delay_it(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    async with attempt_sharing_its_pipes(runner, tmp_path) as (attempt, (output, *_), child):
        with subprocess.Popen(["yes"], stdout=output) as outsider:
            try:
                child.close()
                await wait_until(lambda: not is_alive(attempt.process_id))
                pieces = 0
                async for _ in attempt.reports():
                    pieces += 1
                    if pieces == FOR_EVER:
                        break
                    # A store that is slower than the outsider: there is always more.
                    await asyncio.sleep(0.002)

                assert pieces < FOR_EVER
                assert (await attempt.ending()).result == "done"
                # It printed until the pipe had no reader.
                await wait_until(lambda: outsider.poll() is not None)
            finally:
                outsider.kill()
