"""An event loop on which waiting takes no time.

When no callback is ready, the clock jumps to the next timer. There are no threads, sockets or
signals, so a run depends only on the program and its seed. Most of what asyncio's own loops do is
left out, which makes a run several times as fast.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Executor
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


# Many times the number at the busiest moment of a run.
_MAX_TURNS_PER_MOMENT = 100_000


class Deadlock(RuntimeError):
    """Every task waits, and none for a timer."""


class Livelock(RuntimeError):
    """Callbacks run without end while no time passes."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they became ready; ``time`` starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0
        self._turns = 0  # since the clock last moved
        self._ready: deque[_Call] = deque()
        self._order = count()
        # The number keeps timers of the same moment in the order of their creation.
        self._later: list[tuple[float, int, _Call]] = []

    def time(self) -> float:
        return self._time

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """Run until a coroutine or future is done. Returns its result."""
        asyncio._set_running_loop(self)  # public for implementers of loops
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finish)
        try:
            task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
            while not task.done():
                self._run_once()
            return task.result()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)

    def _finish(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self.is_closed():
            self.create_task(generator.aclose())

    def _run_once(self) -> None:
        ready, later = self._ready, self._later
        self._turns += 1
        if not ready:
            while later and later[0][2].callback is None:
                heapq.heappop(later)
            if not later:
                message = "every task waits, and none for a timer"
                raise Deadlock(message)
            self._time, self._turns = later[0][0], 0
        elif self._turns > _MAX_TURNS_PER_MOMENT:
            self._turns = 0
            message = f"callbacks run without end at time {self._time}"
            raise Livelock(message)
        while later and later[0][0] <= self._time:
            ready.append(heapq.heappop(later)[2])
        # Only the callbacks that are ready now; those that they add run in the next iteration.
        for _ in range(len(ready)):
            call = ready.popleft()
            if call.callback is not None:
                call.context.run(call.callback, *call.args)

    def call_soon(  # type: ignore[override]
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Call:
        # An empty context is falsy, but still a context.
        context = contextvars.copy_context() if context is None else context
        call = _Call(callback, args, context, self._time)
        self._ready.append(call)
        return call

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Call:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Call:
        context = contextvars.copy_context() if context is None else context
        call = _Call(callback, args, context, when)
        heapq.heappush(self._later, (when, next(self._order), call))
        return call

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        # What would be done in a thread is done at once.
        answer = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - any error is the answer
            answer.set_exception(error)
        return answer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], **keywords: Any
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, **keywords)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise an exception that no task retrieved: it fails the run."""
        error = context.get("exception")
        if isinstance(error, Exception):
            raise error

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def close(self) -> None:
        self._ready.clear()
        self._later.clear()
        super().close()


class _Call:
    """See ``asyncio.TimerHandle``."""

    __slots__ = ("args", "callback", "context", "moment")

    def __init__(
        self,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: contextvars.Context,
        moment: float,
    ) -> None:
        self.callback: Callable[..., Any] | None = callback
        self.args = args
        self.context = context
        self.moment = moment

    def cancel(self) -> None:
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        return self.callback is None

    def when(self) -> float:
        return self.moment
