"""A crew: one worker with the dispatcher and the sweeper beside it, in one process.

Whoever wants work done here, be it for one command or for ever, starts a crew and does something
else in the meantime. If the crew breaks down, that something else is not left waiting for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.ports.backend import Backend
from longshore.ports.presence import Presence
from longshore.services.dispatcher import Dispatcher
from longshore.services.sweeper import Sweeper
from longshore.services.worker.worker import Worker

ResultT = TypeVar("ResultT")

_LOOK_EVERY = timedelta(milliseconds=100)
_PAGE = 200


class Crew:
    """Works while it is entered; leaving it lets running attempts finish within the grace.

    Args:
        dispatcher: None where somebody else dispatches.
    """

    def __init__(
        self,
        *,
        worker: Worker,
        dispatcher: Dispatcher | None,
        sweeper: Sweeper,
        presence: Presence,
    ) -> None:
        self.worker = worker
        self._dispatcher = dispatcher
        self._sweeper = sweeper
        self._presence = presence

    async def __aenter__(self) -> Crew:
        self._working = asyncio.ensure_future(self.worker.run())
        helpers = (self._dispatcher, self._sweeper)
        self._helping = [asyncio.ensure_future(each.run()) for each in helpers if each is not None]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        try:
            await self._working
        finally:
            for helping in self._helping:
                helping.cancel()
            await asyncio.gather(*self._helping, return_exceptions=True)

    def stop(self) -> None:
        """Take no more work, and end when what runs has ended or its grace is over."""
        self.worker.stop()

    def stop_at_once(self) -> None:
        """Likewise, but give back at once what runs, and kill it."""
        self.worker.stop()
        self.worker.end_all()
        self._presence.clear(self.worker.id)

    def kill_children(self) -> None:
        """Kill whatever runs here now; what was to come of it is decided elsewhere."""
        self._presence.clear(self.worker.id)

    async def ended(self) -> None:
        """Return when the worker has stopped; raise what broke the crew."""
        await asyncio.wait((self._working, *self._helping), return_when=asyncio.FIRST_COMPLETED)
        for part in (*self._helping, self._working):
            if part.done():
                await part

    async def during(self, work: Awaitable[ResultT]) -> ResultT:
        """What ``work`` gives; raises at once if the crew breaks down before that."""
        doing = asyncio.ensure_future(work)
        ended = asyncio.ensure_future(self.ended())
        try:
            await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await ended
            return await doing
        finally:
            for part in (doing, ended):
                part.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.gather(part, return_exceptions=True)


async def until_nothing_is_left(
    backend: Backend,
    dispatcher: Dispatcher,
    *,
    tenant: str,
    queues: Sequence[str],
    horizon: timedelta,
) -> None:
    """Return when no task of these queues runs or will run within ``horizon``.

    Tasks that wait for others are found by letting the dispatcher catch up: if nothing runs and
    it has nothing to deal with, whatever still waits does not wait for anything here.
    """
    while True:
        if not await _busy(backend, tenant, queues, horizon):
            told = await dispatcher.step(timedelta(0))
            if not told and not await _busy(backend, tenant, queues, horizon):
                return
        await backend.clock.sleep(_LOOK_EVERY)


async def _busy(backend: Backend, tenant: str, queues: Sequence[str], horizon: timedelta) -> bool:
    soon = backend.clock.now() + horizon
    # A hold that ends by itself is waited for as a task is that is not due yet.
    paused = {one.name for one in await backend.queues.paused() if one.holds(soon)}
    served = [queue for queue in queues if queue not in paused]
    for queue in served:
        if (await backend.queue.depth(queue)).ready:
            return True
    # What runs goes on when its queue is paused.
    for state, among in ((TaskState.PROCESSING, queues), (TaskState.PENDING, served)):
        async for row in _tasks(backend, tenant, state):
            due = row.due_at is None or row.due_at <= soon
            if row.spec.queue in among and due:
                return True
    return False


async def _tasks(backend: Backend, tenant: str, state: TaskState) -> AsyncIterator[TaskRow]:
    cursor: str | None = None
    while True:
        page = await backend.ledger.list_tasks(tenant, state=state, limit=_PAGE, cursor=cursor)
        for row in page.items:
            yield row
        cursor = page.cursor
        if cursor is None:
            return
