"""Stores to back up, and what the tests of backups, restores and upgrades do with them."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.shared import failpoints
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.backups import backup
from longshore.adapters.system import SystemClock
from longshore.core.inspection import BackupFacts, RestoreFacts
from longshore.ports.backend import Backend
from longshore.settings import Settings, load_settings
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from longshore.wiring.services import restore
from tests.unit.services.harness import ServiceHarness, make_task

LARGE = b"x" * 100_000  # a file of its own
KILLED = -signal.SIGKILL


async def fill(backend: Backend, *requests: str) -> None:
    """Jobs that have ended; each has a blob with a file, called as the request."""
    harness = ServiceHarness(backend)
    for request in requests:
        await harness.submit(make_task("a"), request_id=request)
        await harness.finish()
        await backend.blobs.put(request, LARGE)


def make_store(folder: Path) -> Path:
    """A store with an ended job and a file, closed."""

    async def make() -> None:
        async with sqlite_backend(folder, FakeClock(START)) as backend:
            await fill(backend, "first")

    asyncio.run(make())
    return folder


def back_up(folder: Path, target: Path, *, now: datetime | None = None) -> BackupFacts:
    return backup.make_backup(
        folder,
        target,
        now=now or SystemClock().now(),
        version="0.1.0",
        report=lambda done, total: None,
    )


def settings_of(folder: Path) -> Settings:
    own = {"data_dir": str(folder), "keys_dir": str(folder.parent / "keys")}
    return load_settings(own, environ={}, cwd=folder.parent)


def restore_to(folder: Path, source: Path) -> RestoreFacts:
    return asyncio.run(restore(settings_of(folder), source, lambda done, total: None))


def select(path: Path, sql: str) -> Any:
    """The first value of a query of a database file."""
    with closing(store_file.connect(path, read_only=True)) as connection:
        return connection.execute(sql).fetchall()[0][0]


def execute(path: Path, sql: str, *values: str) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute(sql, values)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def killed_at(point: str, act: Callable[[], object]) -> int:
    """Do it in a process that is killed at a failpoint. Returns how the process ended."""
    child = os.fork()
    if child == 0:

        def kill(name: str) -> None:
            if name == point:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            failpoints.arm(kill)
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
