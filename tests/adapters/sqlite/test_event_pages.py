"""Pages of events along the feed: complete, in order, and found by an index."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import events as sqlite_events
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.rows import Names
from longshore.adapters.sqlite.transaction import FeedEntry, StoreTransaction, feed_entries
from longshore.core.events.event import Event
from longshore.core.tasks.changes import Change
from longshore.ports.backend import Backend
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import claim, commit, new_job, new_task
from longshore.testing.contracts.suite import START
from tests.execution.conftest import scenario

SKIPPED = 1 << 24


async def pages(backend: Backend, limit: int, **conditions: Any) -> list[Event]:
    """All events, read page by page."""
    cursor, events = None, []
    while True:
        page = await backend.events.query("acme", limit=limit, cursor=cursor, **conditions)
        events += page.items
        cursor = page.cursor
        if cursor is None:
            return events


async def a_job_of_many_tasks(backend: Backend, count: int) -> list[Event]:
    """Commit a job whose tasks begin in two states, and claim some of them."""
    job = new_job()
    tasks = [new_task(f"t{n:02}", number=n, awaits=[0] if n % 2 else []) for n in range(count)]
    await backend.ledger.commit(replace(job, row=replace(job.row, total=count)), *tasks)
    await commit(backend, new_task("other", job_id="job-two", number=0))
    claims = [claim(task.row) for task in tasks[::2]]
    await backend.ledger.commit(*claims)
    return [event for change in (job, *tasks, *claims) for event in change.events]


@pytest.mark.parametrize("near_end", [0, 1, 2, 1_000])
@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@scenario
async def test_pages_end_inside_a_row_of_the_feed_without_loss_or_duplicate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, near_end: int, limit: int
) -> None:
    # A listing of a job changes from one way of reading to the other between two pages.
    monkeypatch.setattr(sqlite_events, "NEAR_END_POSITIONS", near_end)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        expected = await a_job_of_many_tasks(backend, 9)

        of_job = await pages(backend, limit, job_id="job-one")
        started = await pages(
            backend, limit, job_id="job-one", event_type="Task Processing Started"
        )
        everything = await pages(backend, limit)

        assert {event.id for event in of_job} == {event.id for event in expected}
        assert len(of_job) == len(expected)
        assert of_job == [event for event in everything if "job-two" not in event.entity_id]
        assert [event for event in of_job if event.type == "Task Processing Started"] == started
        assert len(everything) == len(expected) + 1
        assert await pages(backend, limit, app="shop") == everything


@scenario
async def test_the_order_of_the_feed_is_the_order_of_commits(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        committed = []
        for number in range(20):
            change = new_task(f"t{19 - number:02}", number=19 - number)
            committed += change.events
            await backend.ledger.commit(change)

        assert await pages(backend, 6) == committed


def test_events_of_one_entity_keep_their_order_in_a_row_of_the_feed(tmp_path: Path) -> None:
    connection = apsw.Connection(":memory:")
    for _, sql in store_file.migrations():
        connection.execute(sql)
    transaction = StoreTransaction(connection, Names())
    recorded = [(6, 7, 6), (5, 8, 5), (6, 8, 6), (6, 9, 6), (5, 9, 7), (6, 7, 7), (0, -3, 1)]
    for type_, entity, sequence in recorded:
        transaction.record_events(type_, 1, 2, sequence, [entity])
    transaction.close()

    ((data,),) = connection.execute("SELECT entries FROM feed").fetchall()
    entries = list(feed_entries(data))

    assert sorted(entries, key=str) == sorted(
        (FeedEntry(type_, 1, entity, sequence) for type_, entity, sequence in recorded), key=str
    )
    for entity in (7, 8, 9):
        sequences = [entry.sequence for entry in entries if entry.entity == entity]
        assert sequences == sorted(sequences)


def last_position(backend: Backend) -> int:
    database: Any = backend.events._database  # type: ignore[attr-defined]
    return database.point_value("SELECT max(position) FROM feed")  # type: ignore[no-any-return]


@scenario
async def test_a_position_is_not_used_again_after_a_power_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        first = new_task("a", number=0)
        await backend.ledger.commit(first)
        before = last_position(backend)
    monkeypatch.setattr(store_file, "_boot_id", lambda: "another boot")
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        assert last_position(backend) == before + SKIPPED
        second = new_task("b", number=1)
        await backend.ledger.commit(second)

        assert last_position(backend) == before + SKIPPED + 1
        assert await pages(backend, 1) == [*first.events, *second.events]


@scenario
async def test_a_number_of_an_undone_change_is_never_used(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        row = await commit(backend, new_task("a", number=0))
        undone = new_task("b", number=1, tenant="undone", queue="undone")
        stale = Change(row=replace(row, change_id="stale"), expected_version=7)
        with pytest.raises(Exception, match="version"):
            await backend.ledger.commit(undone, stale)
        stored = await commit(backend, new_task("c", number=2, tenant="kept", queue="kept"))
        again = await commit(backend, undone)
        database = backend.ledger._database

        assert await backend.ledger.get_task(stored.id) == stored
        assert await backend.ledger.get_task(again.id) == again
        texts = [text for (text,) in database.point("SELECT text FROM names ORDER BY no")]
        assert texts.index("kept") < texts.index("undone")
        for number, text in enumerate(texts, 1):
            assert database.find_name(text) == number
            assert database.reader.name(number) == text
