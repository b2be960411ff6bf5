"""The demo's workers: real processes of ``longshore worker``, started, killed and cleared away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from longshore.errors import BackendUnavailable
from longshore.settings import Settings, child_environment

QUEUE = "demo"
_START_TIMEOUT_S = 30
_GRACE_S = 1.0


@dataclass(slots=True, kw_only=True)
class DemoWorker:
    """One worker process."""

    number: int
    id: str
    process: asyncio.subprocess.Process
    killed: bool = False

    @property
    def name(self) -> str:
        """As the audience knows it."""
        return f"worker {self.number}"

    def kill(self) -> None:
        """SIGKILL: no last words, no time to tidy up."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.killed = True


async def start_worker(number: int, folder: Path) -> DemoWorker:
    """Start a worker and wait until it is at work.

    Raises:
        BackendUnavailable: it did not start; the message has its last words.
    """
    log = folder / f"worker-{number}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "longshore", "worker"),
            *("--data-dir", str(folder), "--queue", QUEUE, "--concurrency", "1"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            # Nobody's settings but the defaults: the demo is the same everywhere.
            env=child_environment(Settings()),
            cwd=folder,
        )
    try:
        return DemoWorker(number=number, id=await _read_worker_id(process, log), process=process)
    except BaseException:
        await end_worker(process)
        raise


async def _read_worker_id(process: asyncio.subprocess.Process, log: Path) -> str:
    """The id of a worker, from its first line: ``worker ID: …``."""
    line = b""
    if process.stdout is not None:
        line = await asyncio.wait_for(process.stdout.readline(), _START_TIMEOUT_S)
    if not line:
        message = f"a worker did not start: {_log_tail(log)}"
        raise BackendUnavailable(message)
    return line.decode().split()[1].rstrip(":")


def _log_tail(log: Path) -> str:
    return log.read_text(errors="replace")[-500:]


async def end_worker(process: asyncio.subprocess.Process) -> None:
    """End a worker: it may give back what it runs, and is killed if it takes too long."""
    for ask in (process.terminate, process.terminate, process.kill):
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            ask()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _GRACE_S)
