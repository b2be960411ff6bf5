"""Longshore, through its public API only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import longshore
from benchmarks.peers import bodies

_ISOLATION = os.environ.get("BENCH_ISOLATION", "pool")
_OPTIONS: dict[str, Any] = {
    "isolation": _ISOLATION,
    "max_attempts": 5,
    "retry": {"base": "1ms", "cap": "1ms"},
}
_LARGEST_JOB = 10_000
_LAYER = 100


@longshore.task(**_OPTIONS)
def noop(number: int) -> None:
    bodies.noop(number)


@longshore.task(**_OPTIONS)
def print_line(number: int) -> None:
    bodies.print_line(number)


@longshore.task(**_OPTIONS)
def fail_once(number: int) -> None:
    bodies.fail_once(number)


@longshore.task(**_OPTIONS)
def sleep_200ms(number: int) -> None:
    bodies.sleep_200ms(number)


@longshore.task(**_OPTIONS)
def sleep_1s(number: int) -> None:
    bodies.sleep_1s(number)


@longshore.task(**_OPTIONS)
def join(results: list[None]) -> None:
    bodies.join()


@longshore.task(**_OPTIONS)
def after(number: int, results: list[None]) -> None:
    bodies.noop(number)


_TASKS = {
    "noop": noop,
    "print_line": print_line,
    "fail_once": fail_once,
    "sleep_200ms": sleep_200ms,
    "sleep_1s": sleep_1s,
}
_client: longshore.Client


def connect() -> None:
    global _client
    _client = longshore.Client().__enter__()


def close() -> None:
    _client.__exit__(None, None, None)


def submit(body: str, number: int) -> None:
    _client.submit(_TASKS[body].of(number))


def submit_high(body: str, number: int) -> None:
    _client.submit(_TASKS[body].of(number), priority="high")


def submit_bulk(
    count: int, body: str = "noop", first: int = 0, size: int = _LARGEST_JOB, queues: int = 1
) -> None:
    """Submit jobs of ``size`` tasks; the queues get the jobs in turns."""
    begins = range(first, first + count, size)
    for number in range(queues):
        queue = f"queue-{number}" if queues > 1 else "default"
        _submit_jobs(begins[number::queues], size, first + count, body, queue)


def _submit_jobs(
    begins: Sequence[int], size: int, end: int, body: str, queue: str = "default"
) -> list[Any]:
    jobs = [
        [_TASKS[body].of(number) for number in range(begin, min(end, begin + size))]
        for begin in begins
    ]
    # The request id finds the job again; see `released`.
    request_ids = [f"{body}-{begin}-{len(job)}" for begin, job in zip(begins, jobs, strict=True)]
    return _client.submit_many(jobs, request_ids=request_ids, queue=queue, priority="low")


def submit_jobs(count: int) -> None:
    _client.submit_many([noop.of(number) for number in range(count)])


def fan_out(count: int) -> None:
    _client.submit(join.of([noop.of(number) for number in range(count)]))


def dag(count: int) -> None:
    above = [noop.of(number) for number in range(_LAYER)]
    calls = list(above)
    for first in range(_LAYER, count, _LAYER):
        above = [
            after.of(first + column, [above[column], above[(column + 1) % _LAYER]])
            for column in range(_LAYER)
        ]
        calls += above
    _client.submit(calls)


def released(count: int, body: str) -> int:
    jobs = _submit_jobs(range(0, count, _LARGEST_JOB), _LARGEST_JOB, count, body)
    events = (event for job in jobs for event in job.events())
    return sum(event.type == "Task Released" for event in events)
