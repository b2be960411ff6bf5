"""Prefect's background tasks. As a module it is a worker."""

from __future__ import annotations

import os
import sys
from typing import Any

from prefect import task
from prefect.task_worker import serve

from benchmarks.peers import bodies


def _task(name: str) -> Any:
    def run(number: int) -> None:
        bodies.BODIES[name](number)

    run.__name__ = run.__qualname__ = name
    return task(name=name, log_prints=False, retries=2 if name == "fail_once" else 0)(run)


_TASKS = {name: _task(name) for name in bodies.BODIES}


def submit(body: str, number: int) -> None:
    _TASKS[body].delay(number)


if __name__ == "__main__":
    sys.modules["benchmarks.peers.adapters.prefect"] = sys.modules["__main__"]
    serve(*_TASKS.values(), limit=int(os.environ.get("BENCH_SLOTS", "10")))
