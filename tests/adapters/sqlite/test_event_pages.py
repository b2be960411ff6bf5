"""Pages of events of a very long log: found by an index, or along the log near its end."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.events import query_statement
from longshore.core.events.codec import EVENT_TYPES
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from tests.execution.conftest import scenario

BY_TYPE = "SEARCH events USING INDEX events_by_type (tenant=? AND type=? AND position>?)"
OF_ENTITY = "SEARCH events USING INDEX events_by_entity (entity=? AND tenant=?)"
POSITIONS = [
    "SEARCH events USING COVERING INDEX events_by_entity (entity=? AND tenant=?)",
    "SEARCH events USING COVERING INDEX events_by_entity (entity>? AND entity<?)",
]
QUERIES: list[dict[str, str]] = [
    {},
    {"app": "shop"},
    {"event_type": "Task Failed"},
    {"entity": "JOB#job-one"},
    {"job_id": "job-one"},
    {"job_id": "job-one", "event_type": "Task Failed"},
]


def _looks(folder: Path, query: dict[str, Any], *, near_end: bool) -> list[str]:
    """How SQLite goes about it, but for merging and sorting."""
    whole = {"app": None, "event_type": None, "entity": None, "job_id": None, **query}
    sql = query_statement("position, properties", whole, near_end=near_end)
    values = {**whole, "tenant": "acme", "after": 7, "limit": 10}
    connection = apsw.Connection(str(folder / store_file.FILE_NAME))
    steps = [step[-1] for step in connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    connection.close()
    return [step for step in steps if step.startswith(("SEARCH", "SCAN"))]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    @scenario
    async def events() -> None:
        async with sqlite_backend(tmp_path, FakeClock(START)):
            pass

    events()
    return tmp_path


@pytest.mark.parametrize("query", QUERIES, ids=str)
def test_near_its_end_a_page_is_a_walk_along_the_log(store: Path, query: dict[str, str]) -> None:
    along = "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)"

    assert _looks(store, query, near_end=True) == [along]


@pytest.mark.parametrize("query", QUERIES[:2], ids=str)
def test_all_events_of_a_tenant_are_one_walk_a_type(store: Path, query: dict[str, str]) -> None:
    assert _looks(store, query, near_end=False) == [BY_TYPE] * len(EVENT_TYPES)


def test_events_of_one_type_and_of_one_entity_are_found_by_their_index(store: Path) -> None:
    assert _looks(store, {"event_type": "Task Failed"}, near_end=False) == [BY_TYPE]
    assert _looks(store, {"entity": "JOB#job-one"}, near_end=False) == [OF_ENTITY]


def test_events_of_one_job_are_found_by_positions_that_an_index_alone_gives(store: Path) -> None:
    page = "SEARCH events USING INTEGER PRIMARY KEY (rowid=?)"

    assert _looks(store, {"job_id": "job-one"}, near_end=False) == [page, *POSITIONS]
