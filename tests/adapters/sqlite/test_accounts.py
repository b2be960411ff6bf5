"""Accounts in SQLite: kept through a power loss, and read by their key."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite import opening
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import Database
from longshore.core.budgets import Account, day_account
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.suite import START
from tests.adapters.process.conftest import scenario

FIRST = Account(tenant="acme", name=day_account(START), version=1, change_id="first")


@scenario
async def test_every_commit_of_an_account_is_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promises: list[bool] = []
    write = Database.write

    def noting(
        self: Database, work: Any, *, promised: bool = True, **how: Any
    ) -> asyncio.Future[Any]:
        promises.append(promised)
        return write(self, work, promised=promised, **how)

    monkeypatch.setattr(Database, "write", noting)
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.accounts.commit(FIRST)
        await backend.accounts.commit(replace(FIRST, version=2, change_id="second"))

    assert promises == [True, True]


@scenario
async def test_an_account_is_found_by_its_key_however_many_there_are(tmp_path: Path) -> None:
    async with sqlite_backend(tmp_path, FakeClock(START)) as backend:
        await backend.accounts.commit(FIRST)
    connection = apsw.Connection(str(tmp_path / opening.FILE_NAME))

    plan = connection.execute(
        "EXPLAIN QUERY PLAN SELECT body FROM accounts WHERE tenant = ? AND name = ?", ("a", "b")
    ).fetchall()
    connection.close()

    assert ["SEARCH accounts" in row[-1] for row in plan] == [True]
