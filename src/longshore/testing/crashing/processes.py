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
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from longshore import failpoints
from longshore.runners.keeper.kernel import die_with
from longshore.services.crew import Crew
from longshore.testing.crashing.client import Client
from longshore.testing.crashing.executioner import Executioner, Place
from longshore.testing.crashing.watching import Reached, watched
from longshore.testing.crashing.workload import settings_in
from longshore.wiring import Services, services_on, wired

FAILED = 70


class Role(StrEnum):
    """Who can be killed."""

    CLIENT = "client"  # submits, cancels, replays
    WORKER = "worker"  # is there from the beginning, and drained before all is done
    HEIR = "heir"  # comes when the worker has been killed in the middle of its tasks


def fork() -> int:
    """As ``os.fork``, for a process that is to be killed when this one ends."""
    parent = os.getpid()
    process_id = os.fork()
    if process_id == 0:
        die_with(parent)
    return process_id


def start(role: Role, folder: Path, *, at: Place | None = None, to_the_end: bool = False) -> int:
    """A process of that role, to be killed at that place; its id."""
    process_id = fork()
    if process_id == 0:
        executioner = Executioner(folder, role, at)
        failpoints.arm(executioner.reached)

        async def life() -> None:
            async with _services(folder, executioner.reached) as services:
                if role is Role.CLIENT:
                    await Client(services, folder).play(to_the_end=to_the_end)
                else:
                    await _work(services)

        def live() -> None:
            asyncio.run(life())
            executioner.write_down()

        _become(live, folder / f"log-{role}-{os.getpid()}")
    return process_id


def _become(live: Callable[[], None], log: Path) -> NoReturn:
    """Live another life and end with it; what is said goes to a file."""
    code = FAILED
    try:
        # Whoever forked may have had its own idea of them.
        for handled in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(handled, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0)
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(opened, number)
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
        live()
        code = 0
    except BaseException:  # noqa: BLE001 - the edge of the process
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


@contextlib.asynccontextmanager
async def _services(folder: Path, reached: Reached) -> AsyncIterator[Services]:
    settings = settings_in(folder)
    async with wired(settings) as bare:
        yield services_on(settings, watched(bare.backend, reached), bare.presence)


async def _work(services: Services) -> None:
    """What ``longshore worker`` does."""
    crew = Crew(
        worker=services.worker(),
        dispatcher=services.dispatcher,
        sweeper=services.sweeper,
        presence=services.presence,
    )
    async with crew:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, crew.stop)
        await crew.ended()
