"""Accounts in SQLite: kept through a power loss, and read by their key."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.writer import DatabaseWriter
from longshore.core.budgets import SharedBudget, day_budget_name
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from tests.execution.conftest import scenario

FIRST = SharedBudget(tenant="acme", name=day_budget_name(START), version=1, change_id="first")


@scenario
async def test_every_commit_of_an_account_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises: list[bool] = []
    write = DatabaseWriter.write

    def noting(
        self: DatabaseWriter, work: Any, *, durable: bool = True, **how: Any
    ) -> asyncio.Future[Any]:
        promises.append(durable)
        return write(self, work, durable=durable, **how)

    monkeypatch.setattr(DatabaseWriter, "write", noting)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.budgets.commit(FIRST)
        await backend.budgets.commit(replace(FIRST, version=2, change_id="second"))

    assert promises == [True, True]


@scenario
async def test_an_account_is_found_by_its_key_however_many_there_are(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.budgets.commit(FIRST)
    connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))

    plan = connection.execute(
        "EXPLAIN QUERY PLAN SELECT body FROM budgets WHERE tenant = ? AND name = ?", ("a", "b")
    ).fetchall()
    connection.close()

    assert ["SEARCH budgets" in row[-1] for row in plan] == [True]
