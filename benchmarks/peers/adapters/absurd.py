"""absurd: a task with one step. As a module it is a worker."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from absurd_sdk import Absurd

from benchmarks.peers import bodies

_URL = os.environ["BENCH_POSTGRES_URL"]
_app: Absurd


def install() -> None:
    environment = {**os.environ, "ABSURD_DATABASE_URL": _URL}
    for arguments in (["init"], ["create-queue", "default"]):
        subprocess.run(["absurdctl", *arguments], env=environment, check=True)


def connect() -> None:
    global _app
    _app = Absurd(_URL, queue_name="default")
    for name in bodies.BODIES:
        _register(name)


def _register(name: str) -> None:
    @_app.register_task(name=name)
    def run(params: dict[str, int], context: Any) -> None:
        context.step(name, lambda: bodies.BODIES[name](params["number"]))


def close() -> None:
    _app.close()


def submit(body: str, number: int) -> None:
    _app.spawn(body, {"number": number})


if __name__ == "__main__":
    connect()
    _app.start_worker(concurrency=int(os.environ.get("BENCH_SLOTS", "1")))
