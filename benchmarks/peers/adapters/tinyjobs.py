"""tinyjobs with SQLite."""

from __future__ import annotations

import os

from tinyjobs import TinyJobs

from benchmarks.peers import bodies

app = TinyJobs(f"sqlite:///{os.environ['BENCH_DATABASE']}")
_RETRY = {"max_attempts": 3, "retry_base": 0.001}
_TASKS = {
    name: app.task(**(_RETRY if name == "fail_once" else {}))(body)
    for name, body in bodies.ASYNC_BODIES.items()
}


async def submit(body: str, number: int) -> None:
    await _TASKS[body].aenqueue(number)
