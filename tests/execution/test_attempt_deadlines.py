"""No attempt outlives the deadline of its lease, also if the worker cannot end it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from longshore.errors import BackendUnavailable
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.slot_page import clock_ns
from tests.execution.attempt_worker import KINDS
from tests.execution.conftest import a_command, a_script, run_attempt, scenario, wait_until
from tests.interfaces.command_line import is_alive

ROOT = Path(__file__).parents[2]
IN_TIME = "the worker did not renew its lease in time, and the attempt was ended"


@contextmanager
def _worker(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.execution.attempt_worker", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def _read(process: subprocess.Popen[str], word: str) -> str:
    """The rest of the next line, which begins with the word."""
    assert process.stdout is not None
    name, _, rest = process.stdout.readline().strip().partition(" ")
    assert name == word
    return rest


@pytest.mark.parametrize("kind", KINDS)
@scenario
async def test_a_stopped_worker_does_not_keep_its_attempt_alive(tmp_path: Path, kind: str) -> None:
    with _worker(tmp_path, kind, 600_000, 3_000) as process:
        hidden = int(_read(process, "output"))
        os.kill(process.pid, signal.SIGSTOP)
        assert is_alive(hidden)

        await wait_until(lambda: not is_alive(hidden))
        # Only the reaper can have killed it: the worker is still stopped.
        os.kill(process.pid, signal.SIGCONT)
        assert _read(process, "ended") == IN_TIME


@scenario
async def test_a_deadline_that_is_moved_is_not_enforced(tmp_path: Path) -> None:
    with _worker(tmp_path, "command", 3_000, 600_000) as process:
        hidden, reached_ns = int(_read(process, "output")), clock_ns() + 3_100 * 10**6

        await wait_until(lambda: clock_ns() > reached_ns)

        assert is_alive(hidden)


@scenario
async def test_nothing_runs_after_a_deadline_that_has_passed(
    runner: ProcessRunner, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    spec = a_script(f"sleep 0.1; echo begun > {begun}")

    with pytest.raises(BackendUnavailable):
        await run_attempt(runner, spec, deadline_ns=clock_ns() - 1)
    after, _ = await run_attempt(runner, a_command("true"))

    assert not begun.exists()
    assert after.failure is None
