"""Opens the store that a power loss left and reports what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.sqlite import store_file
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import SqliteOptions
from longshore.adapters.sqlite.store_file import rows
from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.api_keys import hash_key
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.settings import Settings
from longshore.testing.clock import FakeClock
from longshore.testing.worker_registry import FakeWorkerRegistry
from longshore.wiring.services import Services
from verification.power.oracle import Oracle, RecordedWrite
from verification.power.recorder import patched
from verification.power.workload import TENANT, make_claim, make_completion

_ALL_ROWS = 100_000
_LATER = timedelta(hours=1)  # later than every lease, backoff and skew
_MAX_ROUNDS = 200


@dataclass(slots=True)
class CutReport:
    """How much was checked, and the violations."""

    violations: list[str] = field(default_factory=list)
    promise_count: int = 0
    claim_count: int = 0  # claims after the power loss


async def check_after_cut(
    folder: Path, oracle: Oracle, cut: int, *, now: datetime, finish: bool
) -> CutReport:
    """Start the services on the data that is left in ``folder``, and check it.

    Args:
        finish: Whether to finish the remaining work too.
    """
    report = CutReport()
    clock = FakeClock(now)
    try:
        async with boot_services(folder, clock, "after the power loss") as services:
            report.violations += _check_database(folder)
            await _check_promises(services.backend, oracle, cut, report)
            await _check_contents(services.backend, oracle, report)
            report.violations += _audit(folder, now, settled=False)
            if report.violations:
                return report
            clock.advance(_LATER)
            await _check_fences(services, oracle, cut, report)
            if finish:
                await _finish_work(services, clock)
                report.violations += _audit(folder, clock.now(), settled=True)
    except Exception as error:  # noqa: BLE001 - every error is a violation
        report.violations.append(f"{type(error).__name__}: {error}")
    return report


@asynccontextmanager
async def boot_services(
    folder: Path, clock: FakeClock, boot: str, options: SqliteOptions | None = None
) -> AsyncIterator[Services]:
    """The services on the store in a folder, with this boot id."""
    with patched(store_file, "_boot_id", lambda: boot):
        async with sqlite_backend(folder, clock, options) as backend:
            yield Services(
                settings=Settings(tenant=TENANT),
                backend=backend,
                worker_registry=FakeWorkerRegistry(),
            )


def _check_database(folder: Path) -> Iterator[str]:
    path = folder / store_file.FILE_NAME
    connection = store_file.connect(path, read_only=True)
    try:
        findings = [str(row[0]) for row in rows(connection, "PRAGMA integrity_check")]
        if findings != ["ok"]:
            yield f"the file is damaged: {findings[0]}"
        mode = rows(connection, "PRAGMA journal_mode")[0][0]
        if mode != "wal":
            yield f"the file's journal is {mode!r}"
    finally:
        connection.close()


async def _check_promises(backend: Backend, oracle: Oracle, cut: int, report: CutReport) -> None:
    newest: dict[tuple[str, str], Any] = {}
    for note in oracle.rows:
        if note.answered <= cut:
            latest = newest.get(note.subject)
            if latest is None or latest.version < note.value.version:
                newest[note.subject] = note.value
    for (kind, key), row in newest.items():
        ledger = backend.ledger
        stored = await (ledger.get_task(key) if kind == "task" else ledger.get_job(key))
        report.promise_count += 1
        if stored is None or stored.version < row.version:
            is_at = "does not exist" if stored is None else f"is at version {stored.version}"
            report.violations.append(f"{kind} {key} was at version {row.version}, but {is_at}")
        elif stored.version == row.version and stored != row:
            report.violations.append(f"{kind} {key} has changed at version {row.version}")
    for (kind, key), possible in _allowed_values(oracle.values, cut).items():
        value = await _stored_value(backend, kind, key)
        report.promise_count += 1
        if not any(value == candidate for candidate in possible):
            report.violations.append(
                f"{kind} {key!r} is {_short(value)}, not {_short(possible[0])}"
            )


def _allowed_values(notes: Sequence[RecordedWrite], cut: int) -> dict[tuple[str, str], list[Any]]:
    """For each subject, the last value that was answered and the values that were in progress."""
    allowed: dict[tuple[str, str], list[Any]] = {}
    for note in notes:
        if note.started > cut:
            continue
        if note.answered <= cut:
            allowed[note.subject] = [note.value]
        else:
            allowed.setdefault(note.subject, [None]).append(note.value)
    return allowed


async def _stored_value(backend: Backend, kind: str, key: str) -> Any:
    match kind:
        case "blob":
            if await backend.blobs.size(key) is None:
                return None
            return await backend.blobs.get(key)
        case "definition":
            newest = await backend.definitions.get(TENANT, key)
            return newest and replace(newest, version=0)
        case "version":
            name, version = key.split()
            return await backend.definitions.get(TENANT, name, version=int(version))
        case "budget":
            return await backend.budgets.get(TENANT, key)
        case _:
            return await backend.keys.find(hash_key(key))


async def _check_contents(backend: Backend, oracle: Oracle, report: CutReport) -> None:
    """Check that blobs and output have only content that was written, also where unpromised."""
    written: dict[str, list[bytes]] = {}
    for note in oracle.values:
        if note.subject[0] == "blob" and note.value is not None:
            written.setdefault(note.subject[1], []).append(note.value)
    for key in await backend.blobs.list_keys("", limit=_ALL_ROWS):
        if await backend.blobs.get(key) not in written.get(key, []):
            report.violations.append(f"blob {key!r} has content that was never written")
    for task in await _tasks(backend):
        for entry in await backend.output.read(task.id, limit=_ALL_ROWS):
            if oracle.output.get((task.id, entry.attempt, entry.sequence)) != entry.data:
                report.violations.append(f"the output of {task.id} was never printed")


async def _tasks(backend: Backend, state: TaskState | None = None) -> Sequence[TaskRow]:
    return (await backend.ledger.list_tasks(TENANT, state=state, limit=_ALL_ROWS)).items


def _audit(folder: Path, now: datetime, *, settled: bool) -> list[str]:
    taken_at_us = int(now.timestamp() * 1_000_000)
    snapshot = read_snapshot(folder, settled=settled, taken_at_us=taken_at_us)
    return [str(violation) for violation in audit(snapshot)]


async def _check_fences(services: Services, oracle: Oracle, cut: int, report: CutReport) -> None:
    """Claim every pending task: no fence may be issued twice."""
    await services.sweeper.sweep()
    highest = max((fence for answered, fence in oracle.fences if answered <= cut), default=0)
    for row in await _tasks(services.backend, TaskState.PENDING):
        claimed = await services.transitions.apply_to_task(row.id, make_claim(services))
        report.claim_count += 1
        if claimed.fence <= highest:
            text = (
                f"{row.id} is claimed with fence {claimed.fence}, but {highest} was issued before"
            )
            report.violations.append(text)


async def _finish_work(services: Services, clock: FakeClock) -> None:
    """Finish the remaining work as healthy workers would."""
    for _ in range(_MAX_ROUNDS):
        clock.advance(timedelta(seconds=1))
        busy = await services.dispatcher.step(timedelta(0))
        for row in await _tasks(services.backend, TaskState.PROCESSING):
            end: c.Command = c.ConfirmCancel(fence=row.fence)
            if row.cancel is None:
                end = await make_completion(services, row, "done afterwards", None)
            await services.transitions.apply_to_task(row.id, end)
            busy = True
        for row in await _tasks(services.backend, TaskState.IN_REVIEW):
            await services.transitions.apply_to_task(row.id, c.Approve(by="operator"))
            busy = True
        for row in await _tasks(services.backend, TaskState.PENDING):
            await services.transitions.apply_to_task(row.id, make_claim(services))
            busy = True
        if not busy and not await services.sweeper.sweep():
            return


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes from {value[:12]!r} on"
    return repr(value)[:80]
