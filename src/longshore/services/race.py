"""Waiting for the first of several awaitables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def race(*awaitables: Awaitable[Any]) -> AsyncIterator[tuple[asyncio.Future[Any], ...]]:
    """Wait until one of the awaitables is done, and yield all of them as futures.

    On exit, coroutines that are not done are cancelled and awaited. A future that the caller
    passed stays as it is.
    """
    futures = tuple(asyncio.ensure_future(awaitable) for awaitable in awaitables)
    own = [future for future in futures if future not in awaitables]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        yield futures
    finally:
        for future in own:
            future.cancel()
        await asyncio.gather(*own, return_exceptions=True)
