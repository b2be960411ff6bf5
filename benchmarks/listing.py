"""Pages of jobs, and one job, in a store of a thousand jobs and in one of a million.

Both stores are open at once and asked in turns, so that what slows the machine down meets both.
``port`` asks the ledger itself; ``http`` asks a ``longshore up`` of its own for each store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.figures import Figure, under
from benchmarks.harness import scratch
from benchmarks.many_jobs import APART, KEY, NAMES, filled
from benchmarks.scale import Scale
from benchmarks.server_process import BenchmarkClient, run_server
from benchmarks.system import TENANT
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.system import SystemClock
from longshore.core.ids import task_id_of
from longshore.core.tasks.states import JobState
from longshore.ports.backend import Backend

GROWS_LESS_THAN = 2.0
PAGE = 50
_WARM = 5

Request = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MiddleJob:
    """The middle of a store: its rows, and the cursor that leads to them."""

    cursor: str
    moment: datetime
    job_id: str


async def middle_of(backend: Backend, count: int) -> MiddleJob:
    """Found as a reader would who knows when it was."""
    newest = (await backend.ledger.list_jobs(TENANT, limit=1)).items[0]
    moment = newest.spec.created_at - APART * (count // 2)
    page = await backend.ledger.list_jobs(TENANT, created_before=moment, limit=1)
    assert page.cursor is not None
    return MiddleJob(cursor=page.cursor, moment=moment, job_id=page.items[0].id)


def request_filters(middle: MiddleJob) -> dict[str, dict[str, Any]]:
    """What is asked of the listing, by the name of the figure; each gives a full page."""
    state, name = {"state": JobState.FAILED}, {"name": NAMES[-1]}
    from_middle = {"cursor": middle.cursor}
    return {
        "first": {},
        "middle": from_middle,
        "state": state,
        "state_middle": {**state, **from_middle},
        "name": name,
        "name_middle": {**name, **from_middle},
        "name_state": {**name, **state},
        "before": {"created_before": middle.moment},
        "span": {"created_before": middle.moment, "created_from": middle.moment - PAGE * APART},
    }


def port_requests(backend: Backend, middle: MiddleJob) -> dict[str, Request]:
    """Every question to the ledger, and those that the read of a job asks."""

    def listing(filters: Mapping[str, Any]) -> Request:
        async def ask() -> None:
            page = await backend.ledger.list_jobs(TENANT, limit=PAGE, **filters)
            assert len(page.items) == PAGE

        return ask

    async def read() -> None:
        assert await backend.ledger.get_job(middle.job_id) is not None
        tasks = await backend.ledger.list_tasks(TENANT, job_id=middle.job_id, limit=100)
        assert len(tasks.items) == 1
        assert await backend.events.latest(TENANT, f"TASK#{task_id_of(middle.job_id, KEY)}")

    async def find() -> None:
        assert await backend.ledger.find_ids(TENANT, middle.job_id[:16])

    async def events() -> None:
        assert (await backend.events.query(TENANT, job_id=middle.job_id)).items

    listings = {name: listing(query) for name, query in request_filters(middle).items()}
    return {**listings, "job": read, "find": find, "job_events": events}


_QUERY_PARAMETERS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "state": ("status", lambda state: state.value),
    "name": ("name", str),
    "cursor": ("cursor", str),
    "created_from": ("createdFrom", datetime.isoformat),
    "created_before": ("createdBefore", datetime.isoformat),
}


def server_requests(client: BenchmarkClient, middle: MiddleJob) -> dict[str, Request]:
    """The same through the door."""

    def listing(filters: Mapping[str, Any]) -> Request:
        parameters = {
            _QUERY_PARAMETERS[name][0]: _QUERY_PARAMETERS[name][1](value)
            for name, value in filters.items()
        }

        async def ask() -> None:
            assert len(client.get("/jobs", limit=str(PAGE), **parameters)["jobs"]) == PAGE

        return ask

    async def read() -> None:
        assert client.get(f"/jobs/{middle.job_id}")["jobId"] == middle.job_id

    listings = {name: listing(query) for name, query in request_filters(middle).items()}
    return {**listings, "job": read}


def measure(scale: Scale) -> Iterator[Figure]:
    """Milliseconds in the larger store, and how many times those of the smaller."""
    with contextlib.ExitStack() as stack:
        folders = [stack.enter_context(scratch()) for _ in scale.stores]
        for folder, count in zip(folders, scale.stores, strict=True):
            asyncio.run(filled(folder, count))
        yield from asyncio.run(_measured(folders, scale))


async def _measured(folders: Sequence[Path], scale: Scale) -> list[Figure]:
    async with contextlib.AsyncExitStack() as stack:
        small, large = [
            await stack.enter_async_context(sqlite_backend(folder, SystemClock()))
            for folder in folders
        ]
        middles = [await middle_of(small, scale.stores[0]), await middle_of(large, scale.stores[1])]
        asks = port_requests(small, middles[0]), port_requests(large, middles[1])
        figures = await _compared("port", *asks, scale)
    with contextlib.ExitStack() as servers:
        near, far = [servers.enter_context(run_server(folder)) for folder in folders]
        doors = server_requests(near, middles[0]), server_requests(far, middles[1])
        return figures + await _compared("http", *doors, scale)


async def _compared(
    interface: str, small: Mapping[str, Request], large: Mapping[str, Request], scale: Scale
) -> list[Figure]:
    figures = []
    for name in small:
        spent = [
            (await _ms(small[name]), await _ms(large[name])) for _ in range(_WARM + scale.asks)
        ]
        of_small, of_large = zip(*spent[_WARM:], strict=True)
        times = median(of_large) / median(of_small)
        figures.append(
            Figure(
                name=f"listing.{interface}.{name}",
                unit="ms",
                value=median(of_large),
                spread=(min(of_large), max(of_large)),
                floor=median(of_small),
                target=under(GROWS_LESS_THAN, times, "times the small store"),
                details={"times": times, "jobs": scale.stores[1]},
            )
        )
    return figures


async def _ms(ask: Request) -> float:
    began = time.perf_counter()
    await ask()
    return 1000 * (time.perf_counter() - began)
