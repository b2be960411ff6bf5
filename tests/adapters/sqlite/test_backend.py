"""The SQLite backend as a whole: closing it, and a row whose events cannot be written."""

import asyncio
from pathlib import Path

import apsw
import pytest

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import commit, new_creations, new_task


def test_a_backend_that_was_closed_accepts_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sqlite_backend(tmp_path, FakeClock()) as backend:
            pass

        with pytest.raises(BackendUnavailable):
            await commit(backend, new_task("late"))

    asyncio.run(scenario())


def test_a_row_is_not_written_if_the_feed_cannot_have_its_events(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sqlite_backend(tmp_path, FakeClock()) as backend:
            connection = apsw.Connection(str(tmp_path / store_file.FILE_NAME))
            connection.execute(
                "CREATE TRIGGER no_feed BEFORE INSERT ON feed"
                " BEGIN SELECT RAISE(ABORT, 'on purpose'); END"
            )
            created, (creation,) = new_task(), new_creations("job-other")

            with pytest.raises(BackendRejected, match="on purpose"):
                await backend.ledger.commit(created)
            with pytest.raises(BackendRejected, match="on purpose"):
                await backend.ledger.create_jobs([creation])

            counts = "(SELECT count(*) FROM jobs), (SELECT count(*) FROM tasks)"
            assert connection.execute(f"SELECT {counts}").get == (0, 0)
            connection.execute("DROP TRIGGER no_feed")
            connection.close()
            assert await commit(backend, created) == created.row
            assert await backend.ledger.create_jobs([creation]) == [()]

    asyncio.run(scenario())
