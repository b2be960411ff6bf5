"""A store with as many jobs as one likes, quickly.

The real services make one job of each kind, with its task and its events. Their rows are then
copied as often as needed, with numbers, an id, a name and a time of their own; the events of a copy
are at one position of the feed. Indexes and log are taken away meanwhile, which leaves the same
file much sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any

import apsw

from benchmarks.system import TENANT, TRUE, open_system
from longshore.adapters.shared import codec
from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.history import pack_record, unpack_records
from longshore.adapters.sqlite.rows import NUMBER_BITS, Names, pack_job_id
from longshore.adapters.sqlite.transaction import StoreTransaction
from longshore.core.ids import ID_BYTES, task_id_of
from longshore.core.tasks import commands as c
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import JobRow
from longshore.wiring.services import Services

NAMES = tuple(f"name-{number}" for number in range(5))
KEY = "t0"
"""What the one task of each job is called."""

APART = timedelta(seconds=1)
"""Between one job's creation and the next one's."""

_LATER = "2100-01-01T00:00:00Z"
_NO_TIME = timedelta(0)
_LEASE = timedelta(minutes=10)
_BROKEN = Failure(category=ErrorCategory.UNKNOWN, message="as configured", retry=False)
_KINDS = ("running", "completed", "failed", "cancelled")
_TABLES = ("jobs", "tasks", "feed", "feed_types", "history_segments")

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The rows of a job and of its only task."""

    job: Row
    task: Row


async def filled(folder: Path, count: int) -> None:
    """Fill the folder's store with so many jobs, of every kind and name; the newest is of now."""
    async with open_system(folder) as services:
        patterns = [await _pattern(services, kind) for kind in _KINDS]
        now = services.backend.clock.now()
    path = folder / store_file.FILE_NAME
    connection = store_file.connect(path)
    connection.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA temp_store=2")
    connection.execute("PRAGMA cache_size=-500000")
    with connection, _without_indexes(connection):
        rows = [_rows_of(connection, pattern) for pattern in patterns]
        for table in _TABLES:
            connection.execute(f"DELETE FROM {table}")  # noqa: S608 - names of this module
        _insert_copies(connection, rows, count, codec.to_us(now))
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


async def _pattern(services: Services, kind: str) -> JobRow:
    """A job that has come as far as this."""
    # A running task is not due for long: no message is sent for it while others are measured.
    when = {"runAt": _LATER} if kind == "running" else {}
    document = {"name": "pattern", "tasks": [{"taskId": KEY, **TRUE, **when}]}
    accepted = await services.producer.submit(TENANT, kind, document)
    job_id, task_id = accepted.job.id, task_id_of(accepted.job.id, KEY)
    if kind == "cancelled":
        await services.operator_commands.cancel_job(job_id, by="benchmarks", tenant=TENANT)
    elif kind != "running":
        claim = c.Claim(
            worker_id="w", process_id=1, lease_duration=_LEASE, epoch=services.backend.ledger.epoch
        )
        claimed = await services.transitions.apply_to_task(task_id, claim)
        outcome: c.Command = c.Complete(fence=claimed.fence, result=None, duration=_NO_TIME)
        if kind == "failed":
            outcome = c.AttemptFailed(
                fence=claimed.fence, failure=_BROKEN, duration=_NO_TIME, jitter=0.0
            )
        await services.transitions.apply_to_task(task_id, outcome)
    while await services.dispatcher.step(_NO_TIME):
        pass
    row = await services.backend.ledger.get_job(job_id)
    assert row is not None
    assert row.state.value == kind, f"{kind} is {row.state}"
    return row


@contextmanager
def _without_indexes(connection: apsw.Connection) -> Iterator[None]:
    schema = connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
        " AND tbl_name IN ('jobs', 'tasks')"
    ).fetchall()
    for name, _ in schema:
        connection.execute(f"DROP INDEX {name}")
    yield
    for _, sql in schema:
        connection.execute(str(sql))


def _rows_of(connection: apsw.Connection, pattern: JobRow) -> _Pattern:
    (job,) = _rows(connection, "jobs", "id = ?", pack_job_id(pattern.id))
    (task,) = _rows(connection, "tasks", "no = ?", job["no"] << NUMBER_BITS)
    return _Pattern(job, task)


def _rows(connection: apsw.Connection, table: str, condition: str, value: Any) -> list[Row]:
    """Rows of a table, by column."""
    names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    sql = f"SELECT * FROM {table} WHERE {condition}"  # noqa: S608 - names of this module
    return [dict(zip(names, row, strict=True)) for row in connection.execute(sql, (value,))]


def _insert_copies(
    connection: apsw.Connection, patterns: list[_Pattern], count: int, newest_us: int
) -> None:
    """Insert so many jobs; every name has jobs of every kind, and one in twenty has not ended."""
    names = Names()
    numbering = StoreTransaction(connection, names)
    name_numbers = [numbering.number_of(name) for name in NAMES]
    apart_us = APART // timedelta(microseconds=1)
    for position in range(1, count + 1):
        number = count - position  # of jobs that are newer
        kind = 0 if number // 5 % 20 == 0 else 1 + number // 5 % 3
        created = {"created_us": newest_us - number * apart_us}
        job = {
            **patterns[kind].job,
            **created,
            "no": position,
            "id": blake2b(number.to_bytes(8, "big"), digest_size=ID_BYTES).digest(),
            "name": name_numbers[number % 5],
        }
        task = {**patterns[kind].task, **created, "no": position << NUMBER_BITS}
        transaction = StoreTransaction(connection, names)
        for table, row, entity in (("jobs", job, -position), ("tasks", task, task["no"])):
            records = unpack_records(row["history"])
            row["history"] = b"".join(
                pack_record(*record._replace(position=position)) for record in records
            )
            _insert(connection, table, row)
            for sequence, record in enumerate(records, 1):
                transaction.record_events(
                    record.type, job["tenant"], job["app"], sequence, [entity]
                )
        transaction.close()


def _insert(connection: apsw.Connection, table: str, row: Row) -> None:
    marks = ",".join("?" * len(row))
    sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"  # noqa: S608 - our columns
    connection.execute(sql, tuple(row.values()))
