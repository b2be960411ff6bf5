"""A worker is gone only when nothing of its attempts lives."""

import os
import signal
from pathlib import Path

from longshore.adapters.process.presence import FilePresence
from longshore.adapters.process.runner import ProcessRunner
from longshore.adapters.process.table import alive
from longshore.adapters.system.clock import SystemClock
from longshore.runners.keeper.kernel import descendants
from tests.adapters.process.attempts import started
from tests.adapters.process.conftest import a_command, scenario, until
from tests.adapters.process.household import guards_of

WORKER = "w1"


@scenario
async def test_a_worker_is_not_gone_while_anything_of_its_attempt_lives(tmp_path: Path) -> None:
    ours, others = FilePresence(tmp_path), FilePresence(tmp_path)
    ours.appear(WORKER, ["default"])
    (lock,) = ours.held_by(WORKER)
    runner = ProcessRunner(tmp_path, {"PATH": "/usr/bin:/bin"}, SystemClock(), held=lambda: (lock,))
    async with started(runner, a_command("sleep", "1000")) as attempt:
        # As if the worker's own process had ended: its files are closed, and nothing else is done.
        os.close(lock)

        below = guards_of(runner)
        (guard,) = (one for one in below if attempt.process_id in descendants(one))
        os.kill(guard, signal.SIGSTOP)
        await runner.close()

        assert alive(attempt.process_id)
        assert not others.gone(WORKER)
        os.kill(guard, signal.SIGCONT)
        await until(lambda: others.gone(WORKER))
        assert not alive(attempt.process_id)
