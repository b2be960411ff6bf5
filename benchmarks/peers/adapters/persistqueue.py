"""persist-queue's acknowledged SQLite queue, for one consumer: the worker is the loop below."""

from __future__ import annotations

import os
import time

from persistqueue import SQLiteAckQueue
from persistqueue.exceptions import Empty

from benchmarks.peers import bodies

_POLL_S = 0.01
_queue: SQLiteAckQueue


def connect() -> None:
    global _queue
    _queue = SQLiteAckQueue(os.environ["BENCH_DATABASE"], multithreading=True)


def submit(body: str, number: int) -> None:
    _queue.put((body, number))


def _work() -> None:
    while True:
        try:
            item = _queue.get(block=False)
        except Empty:
            time.sleep(_POLL_S)
            continue
        bodies.BODIES[item[0]](item[1])
        _queue.ack(item)


if __name__ == "__main__":
    connect()
    _work()
