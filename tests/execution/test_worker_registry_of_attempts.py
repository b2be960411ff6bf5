"""A worker is dead only when no process of its attempts is alive."""

import os
import signal
from pathlib import Path

from longshore.adapters.system import SystemClock
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.execution.process_table import descendants
from tests.execution.attempts import running_attempt
from tests.execution.conftest import a_command, scenario, wait_until
from tests.execution.process_tree import reapers_of
from tests.interfaces.command_line import is_alive

WORKER = "w1"


@scenario
async def test_a_worker_is_not_dead_while_a_process_of_its_attempt_is_alive(tmp_path: Path) -> None:
    ours, others = FileWorkerRegistry(tmp_path), FileWorkerRegistry(tmp_path)
    ours.register(WORKER, ["default"])
    (lock,) = ours.lock_descriptors(WORKER)
    runner = ProcessRunner(
        tmp_path, {"PATH": "/usr/bin:/bin"}, SystemClock(), inherited_fds=lambda: (lock,)
    )
    async with running_attempt(runner, a_command("sleep", "1000")) as attempt:
        # As if the worker's own process had ended: its files are closed, and nothing else is done.
        os.close(lock)

        below = reapers_of(runner)
        (reaper,) = (item for item in below if attempt.process_id in descendants(item))
        os.kill(reaper, signal.SIGSTOP)
        await runner.close()

        assert is_alive(attempt.process_id)
        assert not others.is_dead(WORKER)
        os.kill(reaper, signal.SIGCONT)
        await wait_until(lambda: others.is_dead(WORKER))
        assert not is_alive(attempt.process_id)
