"""The SQLite backend as a whole: opening and closing it."""

import asyncio
from pathlib import Path

import pytest

from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.errors import BackendUnavailable
from longshore.testing.clock import FakeClock
from longshore.testing.contracts.samples import commit, new_task


def test_a_backend_that_was_closed_accepts_nothing_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with sqlite_backend(tmp_path, FakeClock()) as backend:
            pass

        with pytest.raises(BackendUnavailable):
            await commit(backend, new_task("late"))

    asyncio.run(scenario())
