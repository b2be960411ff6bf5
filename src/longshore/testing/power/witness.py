"""Notes what was asked of a backend and what was answered, and when: at which operation.

What must not be lost is listed here a second time, apart from what the core and the adapter say of
it: everything but claims, renewals and rings on this machine (DESIGN 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from longshore.core.budgets import Account
from longshore.core.changes import Ring
from longshore.core.definition import Definition
from longshore.core.events import types as e
from longshore.core.keys import KeyRecord
from longshore.core.rows import JobRow, TaskRow
from longshore.ports.backend import Backend
from longshore.ports.ledger import AnyChange
from longshore.ports.output import OutputEntry

NEVER = 1 << 62
_NOT_PROMISED = (e.TaskProcessingStarted.TYPE, e.TaskHeartbeat.TYPE)


@dataclass(slots=True)
class Note:
    """Somebody wanted something to be so; it was answered at that operation, or never."""

    about: tuple[str, str]  # a kind and a key
    value: Any
    begun: int
    answered: int = NEVER


@dataclass(slots=True)
class Witness:
    """Everything that was noted."""

    position: Callable[[], int]
    rows: list[Note] = field(default_factory=list)  # of tasks and jobs: only ever newer
    values: list[Note] = field(default_factory=list)  # of all else: the last one counts
    fences: list[tuple[int, int]] = field(default_factory=list)  # when answered, and the fence
    output: dict[tuple[str, int, int], bytes] = field(default_factory=dict)

    @property
    def answers(self) -> list[int]:
        """When something was promised."""
        return sorted({note.answered for note in (*self.rows, *self.values)} - {NEVER})

    def watched(self, backend: Backend) -> Backend:
        """The same backend, with somebody who takes notes."""
        return replace(
            backend,
            ledger=cast("Any", _Ledger(backend.ledger, self)),
            blobs=cast("Any", _Blobs(backend.blobs, self)),
            definitions=cast("Any", _Definitions(backend.definitions, self)),
            keys=cast("Any", _Keys(backend.keys, self)),
            accounts=cast("Any", _Accounts(backend.accounts, self)),
            output=cast("Any", _Output(backend.output, self)),
        )

    @contextmanager
    def noting(self, kind: str, key: str, value: Any) -> Any:
        """Somebody asks for a value to be kept; when nothing goes wrong, it was answered."""
        note = Note((kind, key), value, self.position())
        self.values.append(note)
        yield note
        note.answered = self.position()

    def promises(self, change: AnyChange) -> bool:
        """Whether a change must be there once it was answered."""
        row = change.row
        if isinstance(row, JobRow) or not change.expected_version:
            return True
        if not change.events:
            return not (change.effects and all(isinstance(one, Ring) for one in change.effects))
        local = row.lease is None or row.lease.local
        return not (local and all(event.type in _NOT_PROMISED for event in change.events))


class _Port:
    """Hands everything on that it does not have itself."""

    def __init__(self, port: Any, witness: Witness) -> None:
        self._port = port
        self._witness = witness

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class _Ledger(_Port):
    async def commit(self, *changes: AnyChange) -> Any:
        witness = self._witness
        begun = witness.position()
        effects = await self._port.commit(*changes)
        answered = witness.position()
        # All of a commit is there or nothing of it: one promise in it is a promise of all.
        promised = any(witness.promises(change) for change in changes)
        for change in changes:
            row = change.row
            if promised:
                about = ("task" if isinstance(row, TaskRow) else "job", row.id)
                witness.rows.append(Note(about, row, begun, answered))
            if isinstance(row, TaskRow) and row.lease is not None:
                witness.fences.append((answered, row.lease.fence))
        return effects


class _Blobs(_Port):
    async def put(self, key: str, data: bytes) -> int:
        with self._witness.noting("blob", key, data):
            size: int = await self._port.put(key, data)
        return size

    async def delete(self, key: str) -> bool:
        with self._witness.noting("blob", key, None):
            was_there: bool = await self._port.delete(key)
        return was_there


class _Definitions(_Port):
    async def put(self, tenant: str, definition: Definition) -> Definition:
        with self._witness.noting("definition", definition.name, replace(definition, version=0)):
            stored: Definition = await self._port.put(tenant, definition)
        version = f"{stored.name} {stored.version}"
        with self._witness.noting("version", version, stored):
            return stored

    async def delete(self, tenant: str, name: str) -> bool:
        with self._witness.noting("definition", name, None):
            was_there: bool = await self._port.delete(tenant, name)
        return was_there


class _Keys(_Port):
    async def add(self, record: KeyRecord) -> None:
        with self._witness.noting("key", record.id, record):
            await self._port.add(record)

    async def revoke(self, tenant: str, key_id: str, *, now: Any) -> bool:
        known = {record.id: record for record in await self._port.list(tenant)}
        with self._witness.noting("key", key_id, replace(known[key_id], revoked_at=now)):
            did: bool = await self._port.revoke(tenant, key_id, now=now)
        return did


class _Accounts(_Port):
    async def commit(self, account: Account) -> None:
        with self._witness.noting("account", account.name, account):
            await self._port.commit(account)


class _Output(_Port):
    async def append(self, task_id: str, entries: Sequence[OutputEntry]) -> None:
        for entry in entries:
            self._witness.output[task_id, entry.attempt, entry.sequence] = entry.data
        await self._port.append(task_id, entries)
