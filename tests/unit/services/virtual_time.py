"""Time that waits for threads: it passes only when all work that needs no time is done.

A backend with a thread of its own answers when it is done, however many turns of the event loop
that takes. So the loop counts what threads have in hand and what is about to be called, and a clock
that is stopped is advanced only when both are zero. All that is left then waits for the clock, for
a wake-up, or for ever.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar
from unittest.mock import patch

from longshore.adapters.sqlite.writer import DatabaseWriter
from longshore.testing.clock import FakeClock

ResultT = TypeVar("ResultT")


class IdleAwareLoop(asyncio.SelectorEventLoop):
    """An event loop that knows when it is quiet."""

    def __init__(self) -> None:
        super().__init__()
        self._threads = ThreadPoolExecutor(thread_name_prefix="patient")
        self.set_default_executor(self._threads)
        self._calls_scheduled = 0  # how often a turn was asked for
        self._thread_jobs = 0  # pieces of work in other threads
        self._idle = asyncio.Event()
        self._idle.set()

    def call_soon(self, *arguments: Any, **named: Any) -> asyncio.Handle:
        self._calls_scheduled += 1
        return super().call_soon(*arguments, **named)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        begun = (executor or self._threads).submit(func, *args)
        self.begin()
        answer = asyncio.wrap_future(begun, loop=self)
        # Added after the callback of the answer: the answer is on its way when this one runs.
        begun.add_done_callback(self._end_threadsafe)
        return answer

    def begin(self) -> None:
        """A thread has something in hand."""
        self._thread_jobs += 1
        self._idle.clear()

    def end(self) -> None:
        """It has let go of it, and the answer is here."""
        self._thread_jobs -= 1
        if not self._thread_jobs:
            self._idle.set()

    def _end_threadsafe(self, _: object) -> None:
        # A closed loop waits for no thread.
        with contextlib.suppress(RuntimeError):
            self.call_soon_threadsafe(self.end)

    async def wait_until_idle(self) -> None:
        """Wait until all that can be done now is done."""
        while True:
            await self._idle.wait()
            called = self._calls_scheduled
            await asyncio.sleep(0)
            # A turn in which only this coroutine scheduled a call.
            if self._calls_scheduled == called + 1 and not self._thread_jobs:
                return


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """As ``asyncio.run``, on a loop that knows when it is quiet."""
    with asyncio.Runner(loop_factory=IdleAwareLoop) as runner:
        return runner.run(main)


async def advance(clock: FakeClock, duration: timedelta) -> None:
    """As the clock's own ``run``, with all the patience that threads need."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, IdleAwareLoop), "time passes only on a loop that knows when it is quiet"
    end = clock.elapsed() + duration
    await loop.wait_until_idle()
    while (deadline := clock.next_deadline) is not None and deadline <= end:
        clock.advance(deadline - clock.elapsed())
        await loop.wait_until_idle()
    clock.advance(end - clock.elapsed())
    await loop.wait_until_idle()


class _TrackedWriter(DatabaseWriter):
    """A writer that counts its pending work in its loop."""

    def write(self, work: Any, **how: Any) -> asyncio.Future[Any]:
        answer = super().write(work, **how)
        if isinstance(self._loop, IdleAwareLoop) and not answer.done():
            self._loop.begin()
        return answer

    def _resolve_futures(self, group: Any, topics: Any) -> None:
        # Also of work whose answer is not awaited any more.
        for _ in group if isinstance(self._loop, IdleAwareLoop) else ():
            self._loop.end()
        super()._resolve_futures(group, topics)


@contextlib.contextmanager
def tracked_databases() -> Iterator[None]:
    """The loop waits for every database that is opened meanwhile."""
    with patch("longshore.adapters.sqlite.database.DatabaseWriter", _TrackedWriter):
        yield
