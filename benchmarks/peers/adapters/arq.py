"""arq."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from arq import create_pool, func
from arq.connections import ArqRedis, RedisSettings
from arq.worker import Retry

from benchmarks.peers import bodies

_REDIS = RedisSettings.from_dsn(os.environ["BENCH_REDIS_URL"])
# By default arq logs two lines per task.
LOG = {"version": 1, "disable_existing_loggers": False}
_pool: ArqRedis


def _function(name: str) -> Any:
    async def run(_context: dict[str, Any], number: int) -> None:
        try:
            await bodies.ASYNC_BODIES[name](number)
        except ConnectionError as error:
            raise Retry(defer=0) from error

    return func(run, name=name)


class WorkerSettings:
    """What the command `arq` reads."""

    functions: ClassVar = [_function(name) for name in bodies.ASYNC_BODIES]
    redis_settings = _REDIS
    max_jobs = int(os.environ.get("BENCH_SLOTS", "10"))


async def connect() -> None:
    global _pool
    _pool = await create_pool(_REDIS)


async def close() -> None:
    await _pool.aclose()


async def submit(body: str, number: int) -> None:
    await _pool.enqueue_job(body, number)
