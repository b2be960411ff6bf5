"""Fixtures of the acceptance tests: a data folder, worker processes, and waiting with a timeout."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from longshore.adapters.system import SystemClock
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.settings import Settings, load_settings
from longshore.testing.memory.backend import memory_backend
from longshore.wiring.services import Services, open_services

TIMEOUT_S = 60
_WORKER = """
import asyncio, sys
from longshore.settings import load_settings
from longshore.wiring.services import open_services

async def main(flags):
    async with open_services(load_settings(flags)) as services:
        worker = services.worker()
        print(worker.id, flush=True)
        await asyncio.gather(worker.run(), services.dispatcher.run(), services.sweeper.run())

import json
asyncio.run(main(json.loads(sys.argv[1])))
"""


@contextlib.asynccontextmanager
async def open_services_on(kind: str, settings: Settings) -> AsyncIterator[Services]:
    """The services on the backend of the settings, or on a memory backend."""
    if kind != "memory":
        async with open_services(settings) as services:
            yield services
        return
    with contextlib.closing(FileWorkerRegistry(settings.data_dir.absolute())) as registry:
        backend = memory_backend(SystemClock(), atomic=True)
        yield Services(settings=settings, backend=backend, worker_registry=registry)


class WorkerProcess:
    """A worker with its dispatcher and sweeper, in a process that can be killed."""

    def __init__(self, settings_flags: dict) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, json.dumps(settings_flags)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.id = self.process.stdout.readline().strip()

    def kill(self) -> None:
        """SIGKILL: no last words."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.process.stdout.close()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"data_dir": str(tmp_path / "data")})


@pytest.fixture
def start_worker(settings: Settings) -> Iterator[Callable[..., WorkerProcess]]:
    started = []

    def start(**flags: object) -> WorkerProcess:
        worker = WorkerProcess({"data_dir": str(settings.data_dir), **flags})
        started.append(worker)
        return worker

    yield start
    for worker in started:
        worker.stop()


async def wait_until(check: Callable[[], Awaitable[object]]) -> object:
    """What ``check`` finds, as soon as it is something; fails the test after a long while."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (result := await check()):
            # A look at a store in another process's hands: there is nothing to be woken by.
            await asyncio.sleep(0.01)
        return result
