"""An event loop on which waiting takes no time.

When nobody has anything to do, time leaps to the next moment that somebody waits for. There are no
threads, sockets or signals, so what happens depends on nothing but the program and its seed; and
nearly all that asyncio's own loops do can be left out, which makes a run several times as quick.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")


# Many times as many as the busiest moment of a run has.
_MAX_TURNS_PER_MOMENT = 100_000


class Deadlock(RuntimeError):
    """Everybody waits, and nobody for the clock."""


class Livelock(RuntimeError):
    """Somebody does something over and over, and no time passes."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they became ready; ``time`` starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self._time = 0.0
        self._turns = 0  # since time last went on
        self._ready: deque[_Call] = deque()
        self._order = count()
        # The number keeps those of one moment in the order in which they asked for it.
        self._later: list[tuple[float, int, _Call]] = []

    def time(self) -> float:
        return self._time

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        """What comes of a coroutine or future."""
        asyncio._set_running_loop(self)  # made for those who write loops
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
                message = "everybody waits, and nobody for the clock"
                raise Deadlock(message)
            self._time, self._turns = later[0][0], 0
        elif self._turns > _MAX_TURNS_PER_MOMENT:
            self._turns = 0
            message = f"somebody goes round in a circle, and it is still {self._time}"
            raise Livelock(message)
        while later and later[0][0] <= self._time:
            ready.append(heapq.heappop(later)[2])
        # Only those that are ready now: what they make ready has to wait its turn.
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
        # An empty context counts as false, and is somebody's all the same.
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

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], **keywords: Any
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, **keywords)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """What nobody waited for and went wrong all the same is a fault of the run."""
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
