"""An event loop in a thread of its own, for programs that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from longshore.errors import UsageError

AnyT = TypeVar("AnyT")

_EXHAUSTED: Any = object()


class Portal:
    """Runs coroutines elsewhere, from ``open`` to ``close``, while one thing is entered there."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._calls: set[asyncio.Task[Any] | None] = set()
        self._exit_request: asyncio.Future[BaseException | None]
        self._ended: Future[None]

    def open(self, entered: AbstractAsyncContextManager[Any]) -> None:
        """Start the loop and enter something there; raises what that raises."""
        if self._loop is not None:
            message = "it is open already: one `with` at a time"
            raise UsageError(message)
        self._ended = Future()
        ready: Future[None] = Future()
        threading.Thread(
            target=self._run,
            args=(entered, ready),
            name="longshore-client",
            # A program that forgets to close must be able to end.
            daemon=True,
        ).start()
        ready.result()

    def _run(self, entered: AbstractAsyncContextManager[Any], ready: Future[None]) -> None:
        async def main() -> None:
            # Entered and left by one task, as some of what is inside may have to be.
            await entered.__aenter__()
            self._exit_request = asyncio.get_running_loop().create_future()
            self._loop = asyncio.get_running_loop()
            ready.set_result(None)
            error = await self._exit_request
            # One whose caller was interrupted is still on its way out, and needs what is inside.
            await asyncio.gather(*filter(None, self._calls), return_exceptions=True)
            trace = error.__traceback__ if error else None
            await entered.__aexit__(type(error) if error else None, error, trace)

        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            (self._ended if ready.done() else ready).set_exception(error)
        else:
            self._ended.set_result(None)

    def call(self, work: Coroutine[Any, Any, AnyT]) -> AnyT:
        """Run a coroutine on the loop and wait for what it gives."""
        if self._loop is None:
            work.close()
            message = "the client is not open: use it as `with longshore.Client() as client:`"
            raise UsageError(message)
        future = asyncio.run_coroutine_threadsafe(self._tracked(work), self._loop)
        try:
            return future.result()
        finally:
            # If the waiting was interrupted, nobody wants the answer any more.
            future.cancel()

    async def _tracked(self, work: Coroutine[Any, Any, AnyT]) -> AnyT:
        call = asyncio.current_task()
        self._calls.add(call)
        try:
            return await work
        finally:
            self._calls.discard(call)

    def iterate(self, source: AsyncIterator[AnyT]) -> Iterator[AnyT]:
        """The items of an asynchronous iterator; it is closed when this is left."""

        async def next_item() -> AnyT:
            return await anext(source, _EXHAUSTED)

        async def close() -> None:
            if hasattr(source, "aclose"):
                await source.aclose()

        try:
            while (item := self.call(next_item())) is not _EXHAUSTED:
                yield item
        finally:
            self.call(close())

    def close(self, error: BaseException | None = None) -> None:
        """Leave what was entered, as one leaves it by ``error``, and end the loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(self._exit_request.set_result, error)
            self._ended.result()
