"""A store with as many jobs as one likes, quickly.

The real services make one job of each kind, with its task and its events. SQLite then copies their
rows as often as needed: text for text as the adapter wrote them, with an id, a name and a time of
their own put in place. Of the events it is the last of each job and task, because that is what a
read asks for. Indexes and log are taken away meanwhile, which leaves the same file much sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import apsw

from benchmarks.system import TENANT, TRUE, open_system
from longshore.adapters.shared import codec
from longshore.adapters.sqlite import store_file
from longshore.core.ids import task_id_of
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
_TABLES = {"jobs": "id", "tasks": "job_id", "events": "entity"}  # and where the job is named

# Every name has jobs of every kind; one in twenty has not ended.
_COPIES = """
CREATE TEMP TABLE copies AS
WITH RECURSIVE numbers (value) AS
    (SELECT 0 UNION ALL SELECT value + 1 FROM numbers WHERE value + 1 < ?3)
SELECT value AS number,
       'job-' || lower(hex(randomblob(12))) AS id,
       ?1 - value * ?2 AS us,
       'name-' || (value % 5) AS name,
       CASE value / 5 % 20 WHEN 0 THEN 0 ELSE 1 + value / 5 % 3 END AS kind
FROM numbers
ORDER BY id
"""
_AT = "strftime('%Y-%m-%dT%H:%M:%fZ', us / 1000000.0, 'unixepoch')"


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
        first = (codec.to_us(now), codec.to_us(now) - codec.to_us(now - APART), count)
        connection.execute(_COPIES, first)
        _take_out(connection, patterns)
        for kind, pattern in enumerate(patterns):
            _copy(connection, kind, pattern)
        # Consumers must not receive the copies as new events.
        connection.execute("UPDATE cursors SET position = (SELECT max(position) FROM events)")
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
        " AND tbl_name IN ('jobs', 'tasks', 'events')"
    ).fetchall()
    for name, _ in schema:
        connection.execute(f"DROP INDEX {name}")
    yield
    for _, sql in schema:
        connection.execute(str(sql))


def _copy(connection: apsw.Connection, kind: int, pattern: JobRow) -> None:
    """All rows of one pattern, for each copy of that kind."""
    created = {"old": pattern.id, "at": codec.to_json(pattern.spec.created_at).strip('"')}
    for table in _TABLES:
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        columns = [name for name in names if name != "position"]
        values = ", ".join(_value(f"p.{name}", name) for name in columns)
        # Table and columns are those of our own schema.
        connection.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values}"  # noqa: S608
            f" FROM temp.copies AS o CROSS JOIN temp.{table}_patterns AS p"
            " WHERE o.kind = :kind AND p.pattern = :old",
            {**created, "kind": kind},
        )


def _value(column: str, name: str) -> str:
    """The value of a column of a copy."""
    if name == "created_us":
        return "o.us"
    if name == "name":
        return "o.name"
    if name in ("id", "job_id", "entity"):
        return f"replace({column}, :old, o.id)"
    if name in ("body", "spec", "properties"):
        own = f"replace(replace({column}, :old, o.id), :at, {_AT})"
        return f"""replace({own}, '"name":"pattern"', '"name":"' || o.name || '"')"""
    return column


def _take_out(connection: apsw.Connection, patterns: list[JobRow]) -> None:
    """Put the patterns' rows beside, where they can be found without passing over their copies."""
    for table, owner in _TABLES.items():
        connection.execute(
            f"CREATE TEMP TABLE {table}_patterns AS SELECT '' AS pattern, * FROM {table} LIMIT 0"  # noqa: S608
        )
        for row in patterns:
            theirs = f"FROM {table} WHERE instr({owner}, ?1) > 0"
            last = f"{theirs} GROUP BY {owner} HAVING rowid = max(rowid)"
            connection.execute(f"INSERT INTO {table}_patterns SELECT ?1, * {last}", (row.id,))
            connection.execute(f"DELETE {theirs}", (row.id,))
