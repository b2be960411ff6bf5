"""Opens what a power loss left and says what is wrong with it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from longshore.adapters.sqlite import opening
from longshore.adapters.sqlite.backend import sqlite_backend
from longshore.adapters.sqlite.database import SqliteOptions
from longshore.adapters.sqlite.statements import rows
from longshore.core import commands as c
from longshore.core.keys import hash_of
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.ports.backend import Backend
from longshore.settings import Settings
from longshore.testing.auditing.audit import audit
from longshore.testing.auditing.from_sqlite import evidence_of
from longshore.testing.clock import FakeClock
from longshore.testing.power.recording import replaced
from longshore.testing.power.witness import Note, Witness
from longshore.testing.power.workload import TENANT, claim, completion
from longshore.testing.presence import FakePresence
from longshore.wiring import Services, services_on

_MANY = 100_000
_BUSY = timedelta(seconds=5)
_LATER = timedelta(hours=1)  # than every lease, backoff and skew
_ROUNDS = 200


@dataclass(slots=True)
class Verdict:
    """What was looked at, and what was wrong."""

    breaches: list[str] = field(default_factory=list)
    promises: int = 0  # that were looked for
    claims: int = 0  # that were made afterwards


async def verdict_on(
    folder: Path, witness: Witness, cut: int, *, now: datetime, finish: bool
) -> Verdict:
    """Start the machine again with what is left in ``folder``, and look.

    Args:
        finish: Whether to do all the work that is left, too.
    """
    verdict = Verdict()
    clock = FakeClock(now)
    try:
        async with booted(folder, clock, "after the power loss") as services:
            verdict.breaches += _damage(folder)
            await _promises(services.backend, witness, cut, verdict)
            await _kept_whole(services.backend, witness, verdict)
            verdict.breaches += _audited(folder, now, settled=False)
            if verdict.breaches:
                return verdict
            clock.advance(_LATER)
            await _fences(services, witness, cut, verdict)
            if finish:
                await _finish(services, clock)
                verdict.breaches += _audited(folder, clock.now(), settled=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, nobody was meant to see it
        verdict.breaches.append(f"{type(error).__name__}: {error}")
    return verdict


@asynccontextmanager
async def booted(
    folder: Path, clock: FakeClock, boot: str, options: SqliteOptions | None = None
) -> AsyncIterator[Services]:
    """The services on the store in a folder, in a boot of the machine that has a name."""
    with replaced(opening, "_boot_id", lambda: boot):
        async with sqlite_backend(folder, clock, options) as backend:
            yield services_on(Settings(tenant=TENANT), backend, FakePresence())


def _damage(folder: Path) -> Iterator[str]:
    path = folder / opening.FILE_NAME
    connection = opening.connect(path, busy_timeout=_BUSY, read_only=True)
    try:
        found = [str(row[0]) for row in rows(connection, "PRAGMA integrity_check")]
        if found != ["ok"]:
            yield f"the file is damaged: {found[0]}"
        mode = rows(connection, "PRAGMA journal_mode")[0][0]
        if mode != "wal":
            yield f"the file's journal is {mode!r}"
    finally:
        connection.close()


async def _promises(backend: Backend, witness: Witness, cut: int, verdict: Verdict) -> None:
    newest: dict[tuple[str, str], Any] = {}
    for note in witness.rows:
        if note.answered <= cut:
            known = newest.get(note.about)
            if known is None or known.version < note.value.version:
                newest[note.about] = note.value
    for (kind, key), row in newest.items():
        ledger = backend.ledger
        found = await (ledger.task(key) if kind == "task" else ledger.job(key))
        verdict.promises += 1
        if found is None or found.version < row.version:
            is_at = "is not there" if found is None else f"is at version {found.version}"
            verdict.breaches.append(f"{kind} {key} was at version {row.version} and {is_at}")
        elif found.version == row.version and found != row:
            verdict.breaches.append(f"{kind} {key} is not what it was at version {row.version}")
    for (kind, key), possible in _possible(witness.values, cut).items():
        value = await _value(backend, kind, key)
        verdict.promises += 1
        if not any(value == one for one in possible):
            verdict.breaches.append(f"{kind} {key!r} is {_short(value)}, not {_short(possible[0])}")


def _possible(notes: Sequence[Note], cut: int) -> dict[tuple[str, str], list[Any]]:
    """The last value that was answered, and those that were under way."""
    found: dict[tuple[str, str], list[Any]] = {}
    for note in notes:
        if note.begun > cut:
            continue
        if note.answered <= cut:
            found[note.about] = [note.value]
        else:
            found.setdefault(note.about, [None]).append(note.value)
    return found


async def _value(backend: Backend, kind: str, key: str) -> Any:
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
        case "account":
            return await backend.accounts.account(TENANT, key)
        case _:
            return await backend.keys.find(hash_of(key))


async def _kept_whole(backend: Backend, witness: Witness, verdict: Verdict) -> None:
    """Also of what was not promised there is nothing that is not what somebody wrote."""
    written: dict[str, list[bytes]] = {}
    for note in witness.values:
        if note.about[0] == "blob" and note.value is not None:
            written.setdefault(note.about[1], []).append(note.value)
    for key in await backend.blobs.keys("", limit=_MANY):
        if await backend.blobs.get(key) not in written.get(key, []):
            verdict.breaches.append(f"nobody has written what is in the blob {key!r}")
    for task in await _tasks(backend):
        for entry in await backend.output.read(task.id, limit=_MANY):
            if witness.output.get((task.id, entry.attempt, entry.sequence)) != entry.data:
                verdict.breaches.append(f"nobody has printed what is in the output of {task.id}")


async def _tasks(backend: Backend, state: TaskState | None = None) -> Sequence[TaskRow]:
    return (await backend.ledger.list_tasks(TENANT, state=state, limit=_MANY)).items


def _audited(folder: Path, now: datetime, *, settled: bool) -> list[str]:
    taken_at_us = int(now.timestamp() * 1_000_000)
    evidence = evidence_of(folder, settled=settled, taken_at_us=taken_at_us)
    return [str(violation) for violation in audit(evidence)]


async def _fences(services: Services, witness: Witness, cut: int, verdict: Verdict) -> None:
    """Claim everything: no fence that anybody was ever given may come again."""
    await services.sweeper.sweep()
    highest = max((fence for answered, fence in witness.fences if answered <= cut), default=0)
    for row in await _tasks(services.backend, TaskState.PENDING):
        claimed = await services.transitions.task(row.id, claim(services))
        verdict.claims += 1
        if claimed.fence <= highest:
            text = f"{row.id} is claimed under {claimed.fence}, and {highest} was handed out before"
            verdict.breaches.append(text)


async def _finish(services: Services, clock: FakeClock) -> None:
    """Do whatever there is to do, as healthy workers would."""
    for _ in range(_ROUNDS):
        clock.advance(timedelta(seconds=1))
        busy = await services.dispatcher.step(timedelta(0))
        for row in await _tasks(services.backend, TaskState.PROCESSING):
            end: c.Command = c.ConfirmCancel(fence=row.fence)
            if row.cancel is None:
                end = await completion(services, row, "done afterwards", None)
            await services.transitions.task(row.id, end)
            busy = True
        for row in await _tasks(services.backend, TaskState.IN_REVIEW):
            await services.transitions.task(row.id, c.Approve(by="somebody"))
            busy = True
        for row in await _tasks(services.backend, TaskState.PENDING):
            await services.transitions.task(row.id, claim(services))
            busy = True
        if not busy and not await services.sweeper.sweep():
            return


def _short(value: Any) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes from {value[:12]!r} on"
    return repr(value)[:80]
