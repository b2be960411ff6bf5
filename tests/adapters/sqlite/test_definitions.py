"""Cached definitions: what another process stores or deletes is seen at once."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from longshore.adapters.sqlite.configuration import SqliteDefinitions
from longshore.adapters.sqlite.database import Database, SqliteOptions
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.errors import BackendUnavailable, OutcomeUnknown
from tests.execution.conftest import scenario

TENANT = "acme"


def definition(description: str) -> Definition:
    return Definition(name="fetch", runner=RunnerKind.COMMAND, description=description)


@contextlib.asynccontextmanager
async def opened(folder: Path, count: int = 1) -> AsyncIterator[list[SqliteDefinitions]]:
    """Definitions of one folder, each as a process of its own has them."""
    databases = [Database(folder, SystemClock(), SqliteOptions()) for _ in range(count)]
    try:
        yield [SqliteDefinitions(database) for database in databases]
    finally:
        for database in databases:
            await database.close()


async def description(definitions: SqliteDefinitions) -> str | None:
    newest = await definitions.get(TENANT, "fetch")
    return None if newest is None else newest.description


def statements(definitions: SqliteDefinitions) -> list[str]:
    """The statements by which this process reads from now on."""
    seen: list[str] = []
    connection = definitions._database.reader.connection
    connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: seen.append(event["sql"]))
    return seen


@scenario
async def test_a_definition_is_read_once_while_none_changes(tmp_path: Path) -> None:
    async with opened(tmp_path) as (own,):
        await own.put(TENANT, definition("first"))
        await description(own)
        seen = statements(own)

        assert [await description(own) for _ in range(3)] == ["first"] * 3
        assert await own.put(TENANT, definition("first")) == await own.get(TENANT, "fetch")
        assert seen == []


@scenario
async def test_a_change_by_another_process_is_seen_at_once(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as (own, other):
        assert await description(own) is None
        for text in ("first", "second"):
            await other.put(TENANT, definition(text))
            assert [await description(own), await description(other)] == [text] * 2
        await other.delete(TENANT, "fetch")
        assert [await description(own), await description(other)] == [None] * 2


@pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
@scenario
async def test_nothing_is_cached_while_a_change_is_not_known_to_have_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As if the process that changes a definition had died in between."""
    async with opened(tmp_path, 2) as (own, other):
        await other.put(TENANT, definition("first"))
        await description(own)
        notifier, writer = other._database.notifier, other._database._writer
        if moment == "before the commit":
            writer._connection.set_commit_hook(lambda: True)  # type: ignore[union-attr]
            with pytest.raises(OutcomeUnknown):
                await other.put(TENANT, definition("second"))
        else:
            with monkeypatch.context() as broken:
                broken.setattr(notifier, "commit_ended", lambda: None)
                await other.put(TENANT, definition("second"))

        expected = "second" if moment == "after the commit" else "first"
        seen = statements(own)
        assert [await description(own) for _ in range(2)] == [expected] * 2
        assert len(seen) == 2

        # The next commit of any process ends it.
        await own._database.write(lambda transaction: transaction.number_of("any"))
        assert [await description(own) for _ in range(3)] == [expected] * 3
        assert len(seen) == 3


@scenario
async def test_a_change_that_was_refused_has_ended(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as (own, other):
        await other.put(TENANT, definition("first"))
        write = other._database.write

        async def refused(work: Any) -> Any:
            def fails(transaction: StoreTransaction) -> None:
                work(transaction)
                raise apsw.FullError

            return await write(fails)

        other._database.write = refused  # type: ignore[assignment,method-assign]
        with pytest.raises(BackendUnavailable):
            await other.put(TENANT, definition("second"))

        await description(own)
        seen = statements(own)
        assert (await description(own), seen) == ("first", [])


@scenario
async def test_a_change_left_open_by_a_crash_ends_with_the_next_commit(tmp_path: Path) -> None:
    async with opened(tmp_path) as (own,):
        await own.put(TENANT, definition("first"))
        own._database.notifier.definition_change_begun()
    async with opened(tmp_path) as (own,):
        await own._database.write(lambda transaction: transaction.number_of("any"))
        await description(own)
        seen = statements(own)
        assert (await description(own), seen) == ("first", [])
