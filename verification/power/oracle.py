"""Records each write to a backend, and at which disk operation it was answered.

It decides by itself what must not be lost, independently of core and adapter: everything but
claims, renewals and messages on this machine (DESIGN 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

from longshore.core.api_keys import KeyRecord
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition
from longshore.core.events import types as e
from longshore.core.tasks.changes import Enqueue
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.ports.backend import Backend
from longshore.ports.ledger import AnyChange
from longshore.ports.output import OutputChunk

NEVER = 1 << 62
_NOT_PROMISED = (e.TaskProcessingStarted.TYPE, e.TaskHeartbeat.TYPE)


@dataclass(slots=True)
class RecordedWrite:
    """A write: the value, and the operation at which it was answered."""

    subject: tuple[str, str]  # a kind and a key
    value: Any
    started: int
    answered: int = NEVER


@dataclass(slots=True)
class Oracle:
    position: Callable[[], int]
    rows: list[RecordedWrite] = field(default_factory=list)  # of tasks and jobs; versions only grow
    values: list[RecordedWrite] = field(
        default_factory=list
    )  # of everything else; the last value counts
    fences: list[tuple[int, int]] = field(
        default_factory=list
    )  # the operation of the answer, and the fence
    output: dict[tuple[str, int, int], bytes] = field(default_factory=dict)

    @property
    def answers(self) -> list[int]:
        """The operations at which something was promised."""
        return sorted({note.answered for note in (*self.rows, *self.values)} - {NEVER})

    def observe(self, backend: Backend) -> Backend:
        """A copy of the backend whose writes are recorded."""
        return replace(
            backend,
            ledger=cast("Any", _RecordingLedger(backend.ledger, self)),
            blobs=cast("Any", _RecordingBlobs(backend.blobs, self)),
            definitions=cast("Any", _RecordingDefinitions(backend.definitions, self)),
            keys=cast("Any", _RecordingKeys(backend.keys, self)),
            budgets=cast("Any", _RecordingBudgets(backend.budgets, self)),
            output=cast("Any", _RecordingOutput(backend.output, self)),
        )

    @contextmanager
    def record_write(self, kind: str, key: str, value: Any) -> Any:
        """Record a write; it counts as answered unless the body raises."""
        note = RecordedWrite((kind, key), value, self.position())
        self.values.append(note)
        yield note
        note.answered = self.position()

    def is_promised(self, change: AnyChange) -> bool:
        """Whether a change must be stored once it was answered."""
        row = change.row
        if isinstance(row, JobRow) or not change.expected_version:
            return True
        if not change.events:
            return not (
                change.effects and all(isinstance(effect, Enqueue) for effect in change.effects)
            )
        local = row.lease is None or row.lease.local
        return not (local and all(event.type in _NOT_PROMISED for event in change.events))


class _RecordingPort:
    """Forwards what it does not override."""

    def __init__(self, port: Any, oracle: Oracle) -> None:
        self._port = port
        self._oracle = oracle

    def __getattr__(self, name: str) -> Any:
        return getattr(self._port, name)


class _RecordingLedger(_RecordingPort):
    async def commit(self, *changes: AnyChange) -> Any:
        oracle = self._oracle
        started = oracle.position()
        effects = await self._port.commit(*changes)
        answered = oracle.position()
        # A commit is atomic: a promise for one of its changes is a promise for all.
        promised = any(oracle.is_promised(change) for change in changes)
        for change in changes:
            row = change.row
            if promised:
                about = ("task" if isinstance(row, TaskRow) else "job", row.id)
                oracle.rows.append(RecordedWrite(about, row, started, answered))
            if isinstance(row, TaskRow) and row.lease is not None:
                oracle.fences.append((answered, row.lease.fence))
        return effects


class _RecordingBlobs(_RecordingPort):
    async def put(self, key: str, data: bytes) -> int:
        with self._oracle.record_write("blob", key, data):
            size: int = await self._port.put(key, data)
        return size

    async def delete(self, key: str) -> bool:
        with self._oracle.record_write("blob", key, None):
            deleted: bool = await self._port.delete(key)
        return deleted


class _RecordingDefinitions(_RecordingPort):
    async def put(self, tenant: str, definition: Definition) -> Definition:
        with self._oracle.record_write(
            "definition", definition.name, replace(definition, version=0)
        ):
            stored: Definition = await self._port.put(tenant, definition)
        version = f"{stored.name} {stored.version}"
        with self._oracle.record_write("version", version, stored):
            return stored

    async def delete(self, tenant: str, name: str) -> bool:
        with self._oracle.record_write("definition", name, None):
            deleted: bool = await self._port.delete(tenant, name)
        return deleted


class _RecordingKeys(_RecordingPort):
    async def add(self, record: KeyRecord) -> None:
        with self._oracle.record_write("key", record.id, record):
            await self._port.add(record)

    async def revoke(self, tenant: str, key_id: str, *, now: Any) -> bool:
        records = {record.id: record for record in await self._port.list(tenant)}
        with self._oracle.record_write("key", key_id, replace(records[key_id], revoked_at=now)):
            revoked: bool = await self._port.revoke(tenant, key_id, now=now)
        return revoked


class _RecordingBudgets(_RecordingPort):
    async def commit(self, budget: SharedBudget) -> None:
        with self._oracle.record_write("budget", budget.name, budget):
            await self._port.commit(budget)


class _RecordingOutput(_RecordingPort):
    async def append(self, task_id: str, chunks: Sequence[OutputChunk]) -> None:
        for entry in chunks:
            self._oracle.output[task_id, entry.attempt, entry.sequence] = entry.data
        await self._port.append(task_id, chunks)
