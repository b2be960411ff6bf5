"""A process without work only waits: its poll looks at memory and reads nothing."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import SqliteOptions
from longshore.adapters.sqlite.notifier import Notifier
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import commit, new_task
from longshore.testing.contracts.suite import START, advance_until_done, running, settle
from longshore.testing.contracts.task_source import join
from tests.execution.conftest import scenario

POLL = SqliteOptions().slow_poll
HOUR = timedelta(hours=1)


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the connections that are opened from now on execute."""
    executed: list[str] = []

    def note(cursor: apsw.Cursor, sql: str, bindings: Any) -> bool:
        executed.append(sql)
        return True

    connect: Callable[..., apsw.Connection] = store_file.connect

    def connect_and_note(*arguments: Any) -> apsw.Connection:
        connection = connect(*arguments)
        connection.exec_trace = note
        return connection

    monkeypatch.setattr(store_file, "connect", connect_and_note)
    return executed


async def advance(clock: FakeClock, polls: int) -> None:
    for _ in range(polls):
        clock.advance(POLL)
        await settle()


@scenario
async def test_a_worker_that_waits_for_a_task_executes_no_statement(
    tmp_path: Path, statements: list[str]
) -> None:
    clock = FakeClock(START)
    async with sqlite_backend(tmp_path, clock) as backend:
        worker = await join(backend.source)
        async with running(worker.claim(wait=HOUR)) as claiming:
            await advance(clock, 3)  # it looks at least once
            statements.clear()

            await advance(clock, 10)

            assert statements == []
            assert not claiming.done()


@scenario
async def test_each_change_is_noticed_without_a_wake_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(START)
    monkeypatch.setattr(Notifier, "wake_others", lambda self, topics: None)
    async with sqlite_backend(tmp_path, clock) as first, sqlite_backend(tmp_path, clock) as second:
        worker = await join(second.source)
        for number in range(3):
            async with running(worker.claim(wait=HOUR)) as claiming:
                await advance(clock, 3)
                await commit(first, new_task(f"task-{number}", now=clock.now()))

                (task,) = await advance_until_done(claiming, clock, step=POLL)

            assert task.row.spec.key == f"task-{number}"


@scenario
async def test_after_a_commit_without_an_end_every_poll_looks_until_the_next_commit(
    tmp_path: Path, statements: list[str]
) -> None:
    clock = FakeClock(START)
    async with sqlite_backend(tmp_path, clock) as backend:
        worker = await join(backend.source)
        # As by a process that is killed while it commits.
        backend.ledger._database.notifier.commit_begun()
        async with running(worker.claim(wait=HOUR)):
            for _ in range(3):
                statements.clear()
                await advance(clock, 1)
                assert statements

            await commit(backend, new_task("other", queue="other", now=clock.now()))
            await advance(clock, 3)
            statements.clear()
            await advance(clock, 3)
            assert statements == []


@scenario
async def test_leases_are_looked_for_without_a_statement_until_a_commit_if_there_are_none(
    tmp_path: Path, statements: list[str]
) -> None:
    clock = FakeClock(START)
    async with sqlite_backend(tmp_path, clock) as first, sqlite_backend(tmp_path, clock) as second:
        await commit(first, new_task("other", now=clock.now()))
        assert await second.ledger.leased_tasks(limit=1, expired_by=clock.now()) == []
        assert await second.ledger.leased_tasks(limit=1) == []
        statements.clear()

        assert await second.ledger.leased_tasks(limit=1) == []
        assert await second.ledger.leased_tasks(limit=1, expired_by=clock.now()) == []
        assert statements == []

        (claimed,) = await (await join(first.source)).claim()
        assert await second.ledger.leased_tasks(limit=1, expired_by=clock.now()) == []
        ((task_id, _),) = await second.ledger.leased_tasks(limit=1)
        assert task_id == claimed.row.id


@scenario
async def test_most_polls_make_no_system_call_and_every_tenth_looks_for_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(START)
    looks: list[object] = []
    stat = os.stat
    async with sqlite_backend(tmp_path, clock) as backend:
        worker = await join(backend.source)
        async with running(worker.claim(wait=HOUR)):
            await advance(clock, 3)
            with monkeypatch.context() as patch:
                patch.setattr(os, "stat", lambda path: (looks.append(path), stat(path))[1])
                await advance(clock, 20)

    assert looks == [tmp_path / "longshore.db"] * 2
