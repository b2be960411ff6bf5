"""huey with its SQLite storage."""

from __future__ import annotations

import os

from huey import SqliteHuey, chord

from benchmarks.peers import bodies

huey = SqliteHuey("bench", filename=os.environ["BENCH_DATABASE"])
_TASKS = {
    name: huey.task(name=name, retries=int(name == "fail_once"))(body)
    for name, body in bodies.BODIES.items()
}
_JOIN = huey.task(name="join")(bodies.join)


def submit(body: str, number: int) -> None:
    _TASKS[body](number)


def submit_high(body: str, number: int) -> None:
    _TASKS[body](number, priority=10)


def fan_out(count: int) -> None:
    huey.enqueue(chord([_TASKS["noop"].s(number) for number in range(count)], _JOIN.s()))
