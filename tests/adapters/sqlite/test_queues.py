"""Pauses in SQLite: kept through a power loss, and told to a process that no bell reached."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.bells import Bells
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START, in_time, under_way
from tests.adapters.process.conftest import scenario


def noted_promises(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each write from now on: whether it is waited for until it is on disk."""
    promises: list[bool] = []
    write = Database.write

    def noting(
        self: Database, work: Any, *, promised: bool = True, **how: Any
    ) -> asyncio.Future[Any]:
        promises.append(promised)
        return write(self, work, promised=promised, **how)

    monkeypatch.setattr(Database, "write", noting)
    return promises


@scenario
async def test_pauses_and_their_ends_are_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = noted_promises(monkeypatch)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.queues.pause("default", by="ann", now=START)
        await backend.queues.resume("default")

    assert promises == [True, True]


@scenario
async def test_nobody_waits_until_a_hold_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises = noted_promises(monkeypatch)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        until = START + timedelta(seconds=5)
        await backend.queues.hold("default", until=until, by="w", reason="limit", now=START)

    assert promises == [False]


@scenario
async def test_a_pause_of_which_no_bell_tells_is_known_within_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock(START)
    monkeypatch.setattr(Bells, "ring_elsewhere", lambda self, topics: None)
    async with sqlite_backend(tmp_path, clock) as first, sqlite_backend(tmp_path, clock) as second:
        began = clock.elapsed()
        async with under_way(second.queues.paused_of(["default"], other_than=())) as waiting:
            await first.queues.pause("default", by="ann", now=START)

            step = SqliteOptions().slow_poll / 4
            assert await in_time(waiting, clock, step=step) == {"default"}
            assert clock.elapsed() - began <= SqliteOptions().slow_poll + 3 * step
