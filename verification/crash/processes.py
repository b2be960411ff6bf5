"""The processes of a run, each forked from one that has loaded everything.

The process that forks has no threads and no event loop, so a copy of it is as good as one that was
started, and is there in a millisecond. What is below a worker (keeper, guards, children) is started
as ever.
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
from longshore.execution.forkserver.linux import die_with_parent
from longshore.services.worker.group import WorkerGroup
from longshore.wiring.services import Services, open_services
from verification.crash.client import CrashClient
from verification.crash.failpoint_ports import OnReached, with_failpoints
from verification.crash.killer import Killer, KillPoint
from verification.crash.workload import INTERVALS, SQLITE, settings_for

EXIT_FAILED = 70


class Role(StrEnum):
    """Who can be killed."""

    CLIENT = "client"  # submits, cancels, replays
    WORKER = "worker"  # is there from the beginning, and drained before all is done
    SUCCESSOR = "successor"  # comes when the worker has been killed in the middle of its tasks


def fork_bound() -> int:
    """As ``os.fork``, for a process that is to be killed when this one ends."""
    parent = os.getpid()
    process_id = os.fork()
    if process_id == 0:
        die_with_parent(parent)
    return process_id


def start(
    role: Role, folder: Path, *, kill_point: KillPoint | None = None, until_done: bool = False
) -> int:
    """A process of that role, to be killed at that place; its id."""
    process_id = fork_bound()
    if process_id == 0:
        executioner = Killer(folder, role, kill_point)
        failpoints.arm(executioner.reached)

        async def life() -> None:
            async with _services(folder, executioner.reached) as services:
                if role is Role.CLIENT:
                    await CrashClient(services, folder).run(until_done=until_done)
                else:
                    await _run_worker(services)

        def live() -> None:
            asyncio.run(life())
            executioner.save_counts()

        _run_in_child(live, folder / f"log-{role}-{os.getpid()}")
    return process_id


def _run_in_child(main: Callable[[], None], log: Path) -> NoReturn:
    """Live another life and end with it; what is said goes to a file."""
    code = EXIT_FAILED
    try:
        # Whoever forked may have had its own idea of them.
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
    crew = WorkerGroup(
        worker=services.worker(),
        dispatcher=services.dispatcher,
        sweeper=services.sweeper,
        worker_registry=services.worker_registry,
    )
    async with crew:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, crew.stop)
        await crew.wait()
