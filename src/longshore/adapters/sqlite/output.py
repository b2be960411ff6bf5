"""The output log in SQLite: by the number of the task.

Output of a task that the ledger does not have is stored under the negated number of its id among
the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import TASK_NO, pack_job_id
from longshore.adapters.sqlite.store_file import rows
from longshore.core.ids import split_task_id
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition, Stream

_INSERT = (
    "INSERT INTO output (task, attempt, sequence, at_us, stream, last, data)"
    " VALUES (?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"
)
# A stream is stored by its number: add new ones at the end.
_STREAMS = (Stream.STDOUT, Stream.STDERR, Stream.LOG, Stream.LOST)
_STREAM_NUMBERS = {stream: number for number, stream in enumerate(_STREAMS)}


def chunk_values(chunk: OutputChunk) -> tuple[Any, ...]:
    """The columns of a chunk after the number of its task."""
    return (
        chunk.attempt,
        chunk.sequence,
        codec.to_us(chunk.at),
        _STREAM_NUMBERS[chunk.stream],
        chunk.last,
        chunk.data,
    )


def task_number(connection: apsw.Connection, task_id: str) -> int | None:
    """The number of a task; None if it has no row."""
    job_id, key = split_task_id(task_id)
    matches = rows(connection, TASK_NO, (pack_job_id(job_id), key))
    return matches[0][0] if matches else None


@dataclass(eq=False)
class SqliteOutputLog:
    """See ``ports.output.OutputLog``."""

    _database: Database

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        def work(connection: apsw.Connection) -> None:
            names = self._database.names
            task = task_number(connection, task_id) or -names.number_of(connection, task_id)
            connection.executemany(_INSERT, [(task, *chunk_values(chunk)) for chunk in chunks])

        # Not durable by itself: the later commit of the outcome, which names the last sequence, is.
        await self._database.write(work, durable=False, topics=(Topic.OUTPUT,))

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        task = self._number_of(task_id)
        matches = await self._database.scan(
            "SELECT attempt, sequence, at_us, stream, last, data FROM output WHERE task = ?"
            " AND (attempt, sequence) > (?, ?) ORDER BY attempt, sequence LIMIT ?",
            (task, after.attempt, after.sequence, limit),
        )
        return [
            OutputChunk(
                attempt=attempt,
                sequence=sequence,
                at=codec.from_us(at_us),
                stream=_STREAMS[stream],
                last=last,
                data=data,
            )
            for attempt, sequence, at_us, stream, last, data in matches
        ]

    def _number_of(self, task_id: str) -> int:
        database = self._database
        number = task_number(database.point_connection, task_id)
        return number or -database.find_name(task_id)

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        def look() -> bool | None:
            matches = self._database.point(
                "SELECT 1 FROM output WHERE task = ? AND (attempt, sequence) > (?, ?) LIMIT 1",
                (self._number_of(task_id), after.attempt, after.sequence),
            )
            return True if matches else None

        return await self._database.waiters[Topic.OUTPUT].wait_until(look, wait=timeout) is not None
