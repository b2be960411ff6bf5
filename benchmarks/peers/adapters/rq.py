"""RQ, whose default worker forks for each task."""

from __future__ import annotations

import os

from redis import Redis
from rq import Queue, Retry
from rq.job import Job

from benchmarks.peers import bodies

_LAYER = 100
_queue = Queue(connection=Redis.from_url(os.environ["BENCH_REDIS_URL"]))


def submit(body: str, number: int) -> None:
    retry = Retry(max=3) if body == "fail_once" else None
    _queue.enqueue(bodies.BODIES[body], number, retry=retry)


def submit_high(body: str, number: int) -> None:
    _queue.enqueue(bodies.BODIES[body], number, at_front=True)


def submit_bulk(count: int, body: str = "noop", first: int = 0) -> None:
    _submit_bulk(count, body, first)


def _submit_bulk(count: int, body: str = "noop", first: int = 0) -> list[Job]:
    retry = Retry(max=3) if body == "fail_once" else None
    numbers = range(first, first + count)
    data = [Queue.prepare_data(bodies.BODIES[body], (item,), retry=retry) for item in numbers]
    return list(_queue.enqueue_many(data))


def fan_out(count: int) -> None:
    _queue.enqueue(bodies.join, depends_on=_submit_bulk(count))


def dag(count: int) -> None:
    above = _submit_bulk(_LAYER)
    for first in range(_LAYER, count, _LAYER):
        above = [
            _queue.enqueue(
                bodies.noop,
                first + column,
                depends_on=[above[column], above[(column + 1) % _LAYER]],
            )
            for column in range(_LAYER)
        ]
