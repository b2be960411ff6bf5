"""taskiq with Redis streams, which acknowledge, and results in Redis."""

from __future__ import annotations

import os

from taskiq import SimpleRetryMiddleware
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from benchmarks.peers import bodies

_URL = os.environ["BENCH_REDIS_URL"]
broker = (
    RedisStreamBroker(_URL)
    .with_result_backend(RedisAsyncResultBackend(_URL))
    .with_middlewares(SimpleRetryMiddleware(default_retry_count=3))
)
_TASKS = {
    name: broker.task(task_name=name, retry_on_error=name == "fail_once")(body)
    for name, body in bodies.ASYNC_BODIES.items()
}


async def connect() -> None:
    await broker.startup()


async def close() -> None:
    await broker.shutdown()


async def submit(body: str, number: int) -> None:
    await _TASKS[body].kiq(number)
