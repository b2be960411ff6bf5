"""A worker process of its own with one attempt, for tests that stop it.

``python -m tests.execution.attempt_worker FOLDER KIND DEADLINE_MS EXTENDED_MS`` starts an attempt
that hides a process, prints the id of that process, moves the deadline, and prints how the attempt
ended.
"""

import asyncio
import sys
from pathlib import Path

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Isolation, ResourceLimits
from longshore.execution.host.launcher import ProcessRunner
from longshore.execution.slot_page import clock_ns
from longshore.ports.runner import AttemptSpec, OutputReport
from tests.execution.conftest import a_call, a_script

KINDS: dict[str, AttemptSpec] = {
    "command": a_script("setsid sleep 1000 & echo $!; wait"),
    "spawn": a_call(
        "",
        input={"function": "tests.execution.slot_functions:hides_a_process_and_waits"},
        definition={"isolation": Isolation.SPAWN},
    ),
    "limits": a_call(
        "",
        input={"function": "tests.execution.slot_functions:hides_a_process_and_waits"},
        definition={"resources": ResourceLimits(memory_bytes=2**30)},
    ),
}


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _main(folder: Path, kind: str, deadline_ms: int, extended_ms: int) -> None:
    runner = ProcessRunner(folder, {"PATH": "/usr/bin:/bin"}, SystemClock())
    started_ns = clock_ns()
    attempt = await runner.start(KINDS[kind], deadline_ns=started_ns + deadline_ms * 10**6)
    try:
        async for report in attempt.reports():
            if isinstance(report, OutputReport):
                attempt.trust_until(started_ns + extended_ms * 10**6)
                _print(f"output {report.data.decode().strip()}")
        ending = await attempt.ending()
        _print(f"ended {ending.failure and ending.failure.message}")
    finally:
        await runner.close()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
