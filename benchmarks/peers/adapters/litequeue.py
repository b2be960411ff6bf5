"""litequeue, which is a queue only: the worker below takes a message, runs its body, ends it."""

from __future__ import annotations

import os
import time

from litequeue import LiteQueue

from benchmarks.peers import bodies

_POLL_S = 0.01
_queue: LiteQueue


def connect() -> None:
    global _queue
    _queue = LiteQueue(os.environ["BENCH_DATABASE"], timeout=30)


def submit(body: str, number: int) -> None:
    _queue.put(f"{body} {number}")


def _work() -> None:
    while True:
        message = _queue.pop()
        if message is None:
            time.sleep(_POLL_S)
            continue
        body, number = message.data.split()
        bodies.BODIES[body](int(number))
        _queue.done(message.message_id)


if __name__ == "__main__":
    connect()
    _work()
