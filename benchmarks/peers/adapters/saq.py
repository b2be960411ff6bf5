"""saq with Redis."""

from __future__ import annotations

import os
from typing import Any

from saq import Queue

from benchmarks.peers import bodies

_queue = Queue.from_url(os.environ["BENCH_REDIS_URL"])


def _function(name: str) -> tuple[str, Any]:
    async def run(_context: dict[str, Any], *, number: int) -> None:
        await bodies.ASYNC_BODIES[name](number)

    return name, run


settings = {
    "queue": _queue,
    "functions": [_function(name) for name in bodies.ASYNC_BODIES],
    "concurrency": int(os.environ.get("BENCH_SLOTS", "10")),
}


async def connect() -> None:
    await _queue.connect()


async def close() -> None:
    await _queue.disconnect()


async def submit(body: str, number: int) -> None:
    await _queue.enqueue(body, number=number, retries=3)
