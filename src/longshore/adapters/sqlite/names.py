"""Texts and kinds of tasks that rows refer to by number, because many rows have the same.

A number is given when a text is first stored, and never changes or goes away. What this process has
read is kept in memory. A number that the current transaction has given is not: the transaction may
be undone, and another process may then give the number to another text.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import apsw
import msgspec

from longshore.adapters.sqlite.store_file import rows
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.rows import TaskSpec
from longshore.core.tasks.states import Priority


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """What tasks of the same definition and options have in common."""

    app: str
    definition: str
    definition_version: int
    queue: str
    priority: Priority
    retry: RetryPolicy
    retry_on_timeout: bool
    requires_review: bool

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in KIND_FIELDS}


KIND_FIELDS = tuple(TaskKind.__dataclass_fields__)
_kind_values = attrgetter(*KIND_FIELDS)
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
        number = self._numbers.get(text)
        if number is None:
            number = self._find_or_give(connection, "names", "text", text)
            if number not in self._uncommitted:
                self._numbers[text] = number
        return number

    def find(self, connection: apsw.Connection, text: str) -> int | None:
        """The number of a text; None if no committed row has it."""
        number = self._numbers.get(text)
        if number is None:
            existing = rows(connection, "SELECT no FROM names WHERE text = ?", (text,))
            if not existing:
                return None
            number = int(existing[0][0])
            if number not in self._uncommitted:
                self._numbers[text] = number
        return number

    def text_of(self, connection: apsw.Connection, number: int) -> str:
        """The text of a number."""
        text = self._texts.get(number)
        if text is None:
            sql = "SELECT text FROM names WHERE no = ?"
            text = str(rows(connection, sql, (number,))[0][0])
            if number not in self._uncommitted:
                self._texts[number] = text
        return text

    def kind_number_of(self, connection: apsw.Connection, spec: TaskSpec) -> int:
        """The number of a task's kind, given now if it has none; for the writer only."""
        values = _kind_values(spec)
        number = self._kind_numbers.get(values)
        if number is None:
            kind = TaskKind(**dict(zip(KIND_FIELDS, values, strict=True)))
            number = self._find_or_give(connection, "kinds", "body", _encode_kind(kind).decode())
            if number not in self._uncommitted:
                self._kind_numbers[values] = number
        return number

    def kind(self, connection: apsw.Connection, number: int) -> TaskKind:
        """The kind with a number."""
        kind = self._kinds.get(number)
        if kind is None:
            sql = "SELECT body FROM kinds WHERE no = ?"
            kind = _decode_kind(rows(connection, sql, (number,))[0][0])
            if number not in self._uncommitted:
                self._kinds[number] = kind
        return kind

    def _find_or_give(self, connection: apsw.Connection, table: str, column: str, text: str) -> int:
        sql = f"SELECT no FROM {table} WHERE {column} = ?"
        existing = rows(connection, sql, (text,))
        if existing:
            return int(existing[0][0])
        connection.execute(f"INSERT INTO {table} ({column}) VALUES (?)", (text,))
        number = connection.last_insert_rowid()
        self._uncommitted.add(number)
        return number
