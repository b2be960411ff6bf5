"""Pauses in SQLite survive a power loss, and are noticed without a wake-up."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import SqliteOptions
from longshore.adapters.sqlite.notifier import Notifier
from longshore.adapters.sqlite.writer import DatabaseWriter
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START, advance_until_done, running
from tests.execution.conftest import scenario


def noted_promises(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each write from now on: whether it is waited for until it is on disk."""
    promises: list[bool] = []
    write = DatabaseWriter.write

    def noting(
        self: DatabaseWriter, work: Any, *, durable: bool = True, **how: Any
    ) -> asyncio.Future[Any]:
        promises.append(durable)
        return write(self, work, durable=durable, **how)

    monkeypatch.setattr(DatabaseWriter, "write", noting)
    return promises


@scenario
async def test_pauses_and_their_ends_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = noted_promises(monkeypatch)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.queue_controls.pause("default", by="ann", now=START)
        await backend.queue_controls.resume("default")

    assert promises == [True, True]


@scenario
async def test_a_hold_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = noted_promises(monkeypatch)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        until = START + timedelta(seconds=5)
        await backend.queue_controls.hold("default", until=until, by="w", reason="limit", now=START)

    assert promises == [False]


@scenario
async def test_a_pause_without_a_wake_up_is_noticed_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(START)
    monkeypatch.setattr(Notifier, "wake_others", lambda self, topics: None)
    async with sqlite_backend(tmp_path, clock) as first, sqlite_backend(tmp_path, clock) as second:
        began = clock.elapsed()
        async with running(
            second.queue_controls.paused_queues(["default"], changed_from=())
        ) as waiting:
            await first.queue_controls.pause("default", by="ann", now=START)

            step = SqliteOptions().slow_poll / 4
            assert await advance_until_done(waiting, clock, step=step) == {"default"}
            assert clock.elapsed() - began <= SqliteOptions().slow_poll + 3 * step
