"""dramatiq with Redis."""

from __future__ import annotations

import os

import dramatiq
from dramatiq import group
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.peers import bodies

_URL = os.environ["BENCH_REDIS_URL"]
_broker = RedisBroker(url=f"{_URL}/0")
_broker.add_middleware(GroupCallbacks(RedisBackend(url=f"{_URL}/1")))
dramatiq.set_broker(_broker)
_TASKS = {
    name: dramatiq.actor(body, actor_name=name, min_backoff=1, max_backoff=1)
    for name, body in bodies.BODIES.items()
}
_JOIN = dramatiq.actor(bodies.join, actor_name="join")


def submit(body: str, number: int) -> None:
    _TASKS[body].send(number)


def fan_out(count: int) -> None:
    tasks = group([_TASKS["noop"].message(number) for number in range(count)])
    tasks.add_completion_callback(_JOIN.message())
    tasks.run()
