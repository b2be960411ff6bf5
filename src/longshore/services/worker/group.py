"""A worker group: a worker with a dispatcher and a sweeper, in one process.

A caller starts a group for one command or for ever, and does something else meanwhile. If a part of
the group fails, the caller is not left waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.ports.task_source import TaskSource
from longshore.services.dispatcher import Dispatcher
from longshore.services.reads import iter_tasks
from longshore.services.resilience import race
from longshore.services.sweeper import Sweeper
from longshore.services.worker.worker import Worker

ResultT = TypeVar("ResultT")

_POLL_INTERVAL = timedelta(milliseconds=100)


@dataclass(slots=True, kw_only=True)
class WorkerGroup:
    """Works inside its context; on exit, running attempts may finish within the grace period.

    Args:
        dispatcher: None where events are dispatched elsewhere.
    """

    worker: Worker
    dispatcher: Dispatcher | None
    sweeper: Sweeper
    _worker_task: asyncio.Future[None] = field(init=False)
    _helper_tasks: list[asyncio.Future[None]] = field(init=False)

    async def __aenter__(self) -> WorkerGroup:
        self._worker_task = asyncio.ensure_future(self.worker.run())
        helpers = (self.dispatcher, self.sweeper)
        self._helper_tasks = [
            asyncio.ensure_future(helper.run()) for helper in helpers if helper is not None
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        try:
            await self._worker_task
        finally:
            for helping in self._helper_tasks:
                helping.cancel()
            await asyncio.gather(*self._helper_tasks, return_exceptions=True)

    def stop(self) -> None:
        """Accept no more work; running attempts may finish within the grace period."""
        self.worker.stop()

    def stop_now(self) -> None:
        """Accept no more work, and stop and release running attempts at once."""
        self.worker.stop()
        self.worker.release_all()
        self.worker.kill_children()

    def kill_children(self) -> None:
        """Kill running attempts now, without a grace period."""
        self.worker.kill_children()

    async def wait(self) -> None:
        """Wait until the worker has stopped; raises the error of a part that failed."""
        async with race(self._worker_task, *self._helper_tasks):
            pass
        for part in (*self._helper_tasks, self._worker_task):
            if part.done():
                await part

    async def run_alongside(self, work: Awaitable[ResultT]) -> ResultT:
        """Returns the result of ``work``; raises at once if a part of the group fails before."""
        doing: asyncio.Future[ResultT] = asyncio.ensure_future(work)
        try:
            async with race(doing, self.wait()) as (_, ended):
                if not doing.done():
                    await ended
                return await doing
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)


async def wait_until_idle(
    backend: Backend,
    source: TaskSource,
    dispatcher: Dispatcher,
    *,
    tenant: str,
    queues: Sequence[str],
    horizon: timedelta,
) -> None:
    """Wait until no task of these queues runs or will run within ``horizon``.

    The dispatcher catches up first: if no task runs and it has no events left, a task that still
    waits does not wait for anything of these queues.
    """
    while True:
        if not await _has_work(backend, source, tenant, queues, horizon):
            dispatched = await dispatcher.step(timedelta(0))
            if not dispatched and not await _has_work(backend, source, tenant, queues, horizon):
                return
        await backend.clock.sleep(_POLL_INTERVAL)


async def _has_work(
    backend: Backend, source: TaskSource, tenant: str, queues: Sequence[str], horizon: timedelta
) -> bool:
    soon = backend.clock.now() + horizon
    # A hold that ends within the horizon counts like a task that becomes due within it.
    pauses = await backend.queue_controls.list_pauses()
    paused = {pause.name for pause in pauses if pause.is_active(soon)}
    served = [queue for queue in queues if queue not in paused]
    for queue in served:
        if (await source.depth(queue)).ready:
            return True
    # A pause does not stop running tasks.
    for state, among in ((TaskState.PROCESSING, queues), (TaskState.PENDING, served)):
        async for row in iter_tasks(backend.ledger, tenant, state):
            due = row.due_at is None or row.due_at <= soon
            if row.spec.queue in among and due:
                return True
    return False
