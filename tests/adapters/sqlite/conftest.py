"""What the tests of the SQLite backend share."""

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from longshore.adapters.sqlite.rows import StoreReader

Query = list[tuple[str, Sequence[Any]]]


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Query:
    """Every statement about rows that the reading thread runs."""
    noted: Query = []
    select = StoreReader.select

    def noting(self: StoreReader, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if threading.current_thread().name.startswith("longshore-reader"):
            noted.append((sql, values))
        return select(self, sql, values)

    monkeypatch.setattr(StoreReader, "select", noting)
    return noted
