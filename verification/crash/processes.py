"""The processes of a run, each forked from a process that has imported everything.

The forking process has no threads and no event loop, so its fork behaves like a new process and
starts in a millisecond. A worker starts its fork server, reapers and children as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from longshore.adapters.shared import failpoints
from longshore.execution.linux import die_with_parent
from longshore.services.worker.group import WorkerGroup
from longshore.wiring.services import Services, open_services
from verification.crash.client import CrashClient
from verification.crash.failpoint_ports import OnReached, with_failpoints
from verification.crash.killer import Killer, KillPoint
from verification.crash.workload import INTERVALS, SQLITE, settings_for

EXIT_FAILED = 70


class Role(StrEnum):
    """A process that can be killed."""

    CLIENT = "client"  # submits, cancels, replays
    WORKER = "worker"  # runs from the beginning and is drained before the last job ends
    SUCCESSOR = "successor"  # starts when the worker was killed while its tasks ran


def fork_bound() -> int:
    """Like ``os.fork``; the child is killed when this process ends."""
    parent = os.getpid()
    process_id = os.fork()
    if process_id == 0:
        die_with_parent(parent)
    return process_id


def start(
    role: Role, folder: Path, *, kill_point: KillPoint | None = None, until_done: bool = False
) -> int:
    """Start a process that is killed at its kill point. Returns its process id."""
    process_id = fork_bound()
    if process_id == 0:
        killer = Killer(folder, role, kill_point)
        failpoints.arm(killer.reached)

        async def run_role() -> None:
            async with _services(folder, killer.reached) as services:
                if role is Role.CLIENT:
                    await CrashClient(services, folder).run(until_done=until_done)
                else:
                    await _run_worker(services)

        def run_and_save() -> None:
            asyncio.run(run_role())
            killer.save_counts()

        _run_in_child(run_and_save, folder / f"log-{role}-{os.getpid()}")
    return process_id


def _run_in_child(main: Callable[[], None], log: Path) -> NoReturn:
    """Run ``main`` with its output in a log file, then exit."""
    code = EXIT_FAILED
    try:
        # The parent may have installed handlers.
        for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(handled, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(opened, number)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
        main()
        code = 0
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextlib.asynccontextmanager
async def _services(folder: Path, reached: OnReached) -> AsyncIterator[Services]:
    settings = settings_for(folder)
    async with open_services(settings, intervals=INTERVALS, sqlite=SQLITE) as bare:
        yield replace(bare, backend=with_failpoints(bare.backend, reached))


async def _run_worker(services: Services) -> None:
    """What ``longshore worker`` does."""
    worker_group = WorkerGroup(
        worker=services.worker(),
        dispatcher=services.dispatcher,
        sweeper=services.sweeper,
    )
    async with worker_group:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker_group.stop)
        await worker_group.wait()
