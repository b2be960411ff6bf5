"""The output log in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition, Stream

_INSERT = (
    "INSERT INTO output (task_id, attempt, sequence, at_us, stream, last, data)"
    " VALUES (?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"
)


@dataclass(eq=False)
class SqliteOutputLog:
    """See ``ports.output.OutputLog``."""

    _database: Database

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        values = [
            (
                task_id,
                chunk.attempt,
                chunk.sequence,
                codec.to_us(chunk.at),
                chunk.stream.value,
                chunk.last,
                chunk.data,
            )
            for chunk in chunks
        ]

        def work(connection: apsw.Connection) -> None:
            connection.executemany(_INSERT, values)

        # Not durable by itself: the later commit of the outcome, which names the last sequence, is.
        await self._database.write(work, durable=False, topics=(Topic.OUTPUT,))

    async def read(
        self, task_id: str, *, after: OutputPosition = OUTPUT_START, limit: int = 1000
    ) -> list[OutputChunk]:
        matches = await self._database.scan(
            "SELECT attempt, sequence, at_us, stream, last, data FROM output WHERE task_id = ?"
            " AND (attempt, sequence) > (?, ?) ORDER BY attempt, sequence LIMIT ?",
            (task_id, after.attempt, after.sequence, limit),
        )
        return [
            OutputChunk(
                attempt=attempt,
                sequence=sequence,
                at=codec.from_us(at_us),
                stream=Stream(stream),
                last=last,
                data=data,
            )
            for attempt, sequence, at_us, stream, last, data in matches
        ]

    async def wait_for_output(
        self, task_id: str, *, after: OutputPosition, timeout: timedelta
    ) -> bool:
        def look() -> bool | None:
            matches = self._database.point(
                "SELECT 1 FROM output WHERE task_id = ? AND (attempt, sequence) > (?, ?) LIMIT 1",
                (task_id, after.attempt, after.sequence),
            )
            return True if matches else None

        return await self._database.waiters[Topic.OUTPUT].wait_until(look, wait=timeout) is not None
