"""Running statements: the one place that says what a row is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

Row = tuple[Any, ...]
Bindings = Sequence[Any] | Mapping[str, Any]


def rows(connection: apsw.Connection, sql: str, values: Bindings = ()) -> list[Row]:
    """All rows of a statement. Taking all of them ends it, so that no read stays open."""
    return connection.execute(sql, values).fetchall()
