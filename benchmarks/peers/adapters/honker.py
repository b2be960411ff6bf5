"""honker, an extension of SQLite."""

from __future__ import annotations

import os

import honker

from benchmarks.peers import bodies

db = honker.open(os.environ["BENCH_DATABASE"])
_queue = db.queue("default")
_TASKS = {name: _queue.task(name=name)(body) for name, body in bodies.ASYNC_BODIES.items()}


def submit(body: str, number: int) -> None:
    _TASKS[body](number)


def submit_bulk(count: int, body: str = "noop", first: int = 0) -> None:
    with db.transaction() as transaction:
        for number in range(first, first + count):
            call = {"task": body, "args": [number], "kwargs": {}}
            _queue.enqueue({"__honker_task__": call}, tx=transaction)
