"""Celery with Redis as broker and result backend."""

from __future__ import annotations

import os

from celery import Celery, chord, group

from benchmarks.peers import bodies

_URL = os.environ["BENCH_REDIS_URL"]
app = Celery("bench", broker=f"{_URL}/0", backend=f"{_URL}/1")
app.conf.broker_connection_retry_on_startup = True
_RETRY = {"autoretry_for": (ConnectionError,), "default_retry_delay": 0}
_TASKS = {
    name: app.task(name=name, **(_RETRY if name == "fail_once" else {}))(body)
    for name, body in bodies.BODIES.items()
}
_JOIN = app.task(name="join")(bodies.join)


def submit(body: str, number: int) -> None:
    _TASKS[body].delay(number)


def submit_bulk(count: int, body: str = "noop", first: int = 0) -> None:
    group(_TASKS[body].s(number) for number in range(first, first + count)).apply_async()


def fan_out(count: int) -> None:
    chord((_TASKS["noop"].s(number) for number in range(count)), _JOIN.s()).apply_async()
