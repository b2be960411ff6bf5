"""procrastinate with psycopg."""

from __future__ import annotations

import os

import procrastinate

from benchmarks.peers import bodies

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES_URL"])
)
_RETRY = procrastinate.RetryStrategy(max_attempts=3, wait=0)
_TASKS = {
    name: app.task(name=name, retry=_RETRY if name == "fail_once" else False)(body)
    for name, body in bodies.ASYNC_BODIES.items()
}


async def install() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def connect() -> None:
    await app.open_async()


async def close() -> None:
    await app.close_async()


async def submit(body: str, number: int) -> None:
    await _TASKS[body].defer_async(number=number)


async def submit_high(body: str, number: int) -> None:
    await _TASKS[body].configure(priority=10).defer_async(number=number)


async def submit_bulk(count: int, body: str = "noop", first: int = 0) -> None:
    arguments = [{"number": number} for number in range(first, first + count)]
    await _TASKS[body].batch_defer_async(*arguments)
