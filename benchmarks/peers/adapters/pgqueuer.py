"""pgqueuer with asyncpg; its bulk submit is a COPY."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.errors import RetryRequested
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers import bodies

_URL = os.environ["BENCH_POSTGRES_URL"]
_connection: asyncpg.Connection
_queries: Queries


@asynccontextmanager
async def main() -> AsyncIterator[PgQueuer]:
    """The application that `pgq run` runs."""
    connection = await asyncpg.connect(_URL)
    application = PgQueuer(AsyncpgDriver(connection))
    for name in bodies.ASYNC_BODIES:
        _register(application, name)
    try:
        yield application
    finally:
        await connection.close()


def _register(application: PgQueuer, name: str) -> None:
    @application.entrypoint(name)
    async def run(job: Job) -> None:
        assert job.payload is not None
        try:
            await bodies.ASYNC_BODIES[name](int(job.payload))
        except ConnectionError as error:
            raise RetryRequested from error


async def connect() -> None:
    global _connection, _queries
    _connection = await asyncpg.connect(_URL)
    _queries = Queries(AsyncpgDriver(_connection))


async def install() -> None:
    await connect()
    await _queries.install()
    await close()


async def close() -> None:
    await _connection.close()


async def submit(body: str, number: int) -> None:
    await _queries.enqueue(body, str(number).encode())


async def submit_high(body: str, number: int) -> None:
    await _queries.enqueue(body, str(number).encode(), priority=10)


async def submit_bulk(count: int, body: str = "noop", first: int = 0) -> None:
    payloads = [str(number).encode() for number in range(first, first + count)]
    await _queries.enqueue([body] * count, payloads, [0] * count)
