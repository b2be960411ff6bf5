"""The output log in SQLite: by the number of the task.

Output of a task that the ledger does not have is stored under the negated number of its id among
the names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from longshore.adapters.shared import codec
from longshore.adapters.shared.output_codec import STREAM_NUMBERS, STREAMS
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.notifier import Topic
from longshore.adapters.sqlite.rows import pack_job_id
from longshore.adapters.sqlite.transaction import REMOVED, StoreTransaction
from longshore.core.ids import split_task_id
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition

_INSERT = (
    "INSERT INTO output (task, attempt, sequence, at_us, stream, last, data)"
    " VALUES (?,?,?,?,?,?,?) ON CONFLICT DO NOTHING"
)


@dataclass(eq=False)
class SqliteOutputLog:
    """See ``ports.output.OutputLog``."""

    _database: Database

    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        def work(transaction: StoreTransaction) -> None:
            task = transaction.task_no(task_id)
            if not task:
                if transaction.value(REMOVED, (pack_job_id(split_task_id(task_id)[0]),)):
                    return  # late output of a job that was removed
                task = -transaction.number_of(task_id)
            values = [
                (
                    *(task, chunk.attempt, chunk.sequence, codec.to_us(chunk.at)),
                    *(STREAM_NUMBERS[chunk.stream], chunk.last, chunk.data),
                )
                for chunk in chunks
            ]
            transaction.connection.executemany(_INSERT, values)

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
                stream=STREAMS[stream],
                last=last,
                data=data,
            )
            for attempt, sequence, at_us, stream, last, data in matches
        ]

    def _number_of(self, task_id: str) -> int:
        number = self._database.look(lambda reader: reader.task_no(task_id))
        return number or -self._database.find_name(task_id)

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
