"""Texts and kinds of tasks that rows refer to by number, because many rows have the same.

A number is given when a text is first stored, and never changes or goes away. What this process has
read is kept in memory. A number that the current transaction has given is not: the transaction may
be undone, and another process may then give the number to another text.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import apsw
import msgspec

from longshore.adapters.sqlite.store_file import rows
from longshore.core.tasks.rows import TaskKind, TaskSpec

_KIND_FIELDS = tuple(TaskKind.__dataclass_fields__)
_kind_values = attrgetter(*_KIND_FIELDS)
_encode_kind = msgspec.json.Encoder().encode
_decode_kind = msgspec.json.Decoder(TaskKind).decode


class Names:
    """The numbers of texts and kinds; used with any connection of this process."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._texts: dict[int, str] = {}
        self._kind_numbers: dict[tuple[Any, ...], int] = {}
        self._kinds: dict[int, TaskKind] = {}
        self._uncommitted: set[int] = set()  # numbers that the current transaction has given

    def begin(self) -> None:
        """A transaction begins; the one before was committed or undone."""
        self._uncommitted.clear()

    def number_of(self, connection: apsw.Connection, text: str) -> int:
        """The number of a text, given now if it has none; for the writer only."""
        number = self._numbers.get(text) or self.find(connection, text)
        return number or self._give(connection, "names (text)", text)

    def find(self, connection: apsw.Connection, text: str) -> int | None:
        """The number of a text; None if no committed row has it."""
        number = self._numbers.get(text)
        if number is None:
            number = _first(connection, "SELECT no FROM names WHERE text = ?", text)
            self._remember(self._numbers, text, number, number)
        return number

    def text_of(self, connection: apsw.Connection, number: int) -> str:
        """The text of a number."""
        text = self._texts.get(number)
        if text is None:
            text = str(_first(connection, "SELECT text FROM names WHERE no = ?", number))
            self._remember(self._texts, number, text, number)
        return text

    def kind_number_of(self, connection: apsw.Connection, spec: TaskSpec | TaskKind) -> int:
        """The number of a task's kind, given now if it has none; for the writer only."""
        values = _kind_values(spec)
        number = self._kind_numbers.get(values)
        if number is None:
            body = _encode_kind(TaskKind(**dict(zip(_KIND_FIELDS, values, strict=True)))).decode()
            number = _first(connection, "SELECT no FROM kinds WHERE body = ?", body)
            number = self._give(connection, "kinds (body)", body) if number is None else number
            self._remember(self._kind_numbers, values, number, number)
        return number

    def kind(self, connection: apsw.Connection, number: int) -> TaskKind:
        """The kind with a number."""
        kind = self._kinds.get(number)
        if kind is None:
            kind = _decode_kind(_first(connection, "SELECT body FROM kinds WHERE no = ?", number))
            self._remember(self._kinds, number, kind, number)
        return kind

    def _remember(self, cache: dict[Any, Any], key: Any, value: Any, number: int | None) -> None:
        if number is not None and number not in self._uncommitted:
            cache[key] = value

    def _give(self, connection: apsw.Connection, column: str, text: str) -> int:
        connection.execute(f"INSERT INTO {column} VALUES (?)", (text,))
        number = connection.last_insert_rowid()
        self._uncommitted.add(number)
        return number


def _first(connection: apsw.Connection, sql: str, value: Any) -> Any:
    """The only value of a statement; None if there is no row."""
    matches = rows(connection, sql, (value,))
    return matches[0][0] if matches else None
