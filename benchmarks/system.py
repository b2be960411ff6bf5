"""The real services on a folder, as scenarios need them: with and without a worker at work."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.probes import Probe
from longshore.core.tasks.states import JobState
from longshore.services.submit import AcceptedTasks
from longshore.settings import load_settings
from longshore.wiring.services import Services, open_services

TENANT = "default"
TRUE: dict[str, Any] = {"name": "command", "input": {"argv": ["true"]}}
# Its result says when the child's first line ran.
CLOCK: dict[str, Any] = {"name": "python", "input": {"function": "time:time_ns"}}

_POLL_S = 0.005


@contextlib.asynccontextmanager
async def open_system(folder: Path, **worker: Any) -> AsyncIterator[Services]:
    """All services on ``folder`` with default settings, but for the worker's that are given."""
    flags = {f"worker.{name}": value for name, value in worker.items()}
    settings = load_settings({"data_dir": folder, **flags}, environ={}, cwd=folder)
    async with open_services(settings) as services:
        yield services


@contextlib.asynccontextmanager
async def run_worker(services: Services) -> AsyncIterator[None]:
    """A worker, a dispatcher and a sweeper in this process; one that fails ends the block."""
    worker = services.worker()
    async with asyncio.TaskGroup() as group:
        working = group.create_task(worker.run())
        around = (
            group.create_task(services.dispatcher.run()),
            group.create_task(services.sweeper.run()),
        )
        try:
            yield
        finally:
            worker.stop()
            await working
            for task in around:
                task.cancel()


async def drain(services: Services, window: Probe) -> None:
    """Let a worker begin and end all jobs; stopping it is not part of what counts."""
    async with contextlib.AsyncExitStack() as stack:
        with window:
            await stack.enter_async_context(run_worker(services))
            await wait_until_ended(services)


async def submit(services: Services, name: str, *tasks: dict[str, Any]) -> AcceptedTasks:
    """One job of independent tasks."""
    numbered = [{"taskId": f"t{i}", **task} for i, task in enumerate(tasks)]
    return await services.producer.submit(TENANT, name, {"tasks": numbered})


async def wait_until_ended(services: Services) -> None:
    """Return when no job runs any more; all of them must have completed."""
    ledger = services.backend.ledger
    # Looks instead of following events: a second follower would be paid for by what is measured.
    while (await ledger.list_jobs(TENANT, state=JobState.RUNNING, limit=1)).items:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_S)
    failed = await ledger.list_jobs(TENANT, state=JobState.FAILED, limit=1)
    assert not failed.items, f"{failed.items[0].id} failed"
