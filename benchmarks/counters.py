"""Counting what passes through the ports: rows and bytes, read and written, on any backend.

A row's size is that of its text in SQLite's tables. A task's spec is written once and read with
each read, so it counts with every read and with the first write only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from longshore.adapters.shared import codec
from longshore.core.events.codec import properties_of
from longshore.core.events.event import Event
from longshore.core.queues import message_body
from longshore.core.tasks.changes import Effect, Enqueue
from longshore.core.tasks.rows import JobRow, TaskRow
from longshore.ports.backend import Backend
from longshore.ports.ledger import AnyChange, JobCreation


@dataclass(slots=True)
class Counts:
    """Rows, and the bytes in them."""

    rows_read: int = 0
    rows_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0

    def count_read(self, size: int) -> None:
        """One row was read."""
        self.rows_read += 1
        self.bytes_read += size

    def count_write(self, size: int) -> None:
        """One row was written."""
        self.rows_written += 1
        self.bytes_written += size

    def per_operation(self, operations: int) -> dict[str, float]:
        """By name, for one operation."""
        return {item.name: getattr(self, item.name) / operations for item in fields(self)}


def counted(backend: Backend, counts: Counts) -> Backend:
    """The same backend; what is done through this one is counted."""
    return replace(
        backend,
        ledger=_Ledger(backend.ledger, counts),
        bus=None if backend.bus is None else _Bus(backend.bus, counts),
        blobs=_Blobs(backend.blobs, counts),
        queue=None if backend.queue is None else _Queue(backend.queue, counts),
    )


class _Port:
    """Forwards every call. A call that cannot be counted is refused."""

    uncounted: tuple[str, ...] = ()

    def __init__(self, port: Any, counts: Counts) -> None:
        self._port = port
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        if name in self.uncounted:
            return getattr(self._port, name)
        message = f"{name} is not counted"
        raise NotImplementedError(message)


class _Ledger(_Port):
    uncounted = ("epoch", "atomic")

    async def get_task(self, task_id: str) -> TaskRow | None:
        return next(iter(await self.get_tasks([task_id])), None)

    async def get_tasks(self, task_ids: Sequence[str]) -> list[TaskRow]:
        result: list[TaskRow] = await self._port.get_tasks(task_ids)
        for row in result:
            self._counts.count_read(_size(row, whole=True))
        return result

    async def get_job(self, job_id: str) -> JobRow | None:
        result: JobRow | None = await self._port.get_job(job_id)
        if result is not None:
            self._counts.count_read(_size(result, whole=True))
        return result

    async def task_states(self, job_id: str) -> dict[str, Any]:
        result: dict[str, Any] = await self._port.task_states(job_id)
        for key, state in result.items():
            self._counts.count_read(len(job_id) + 1 + len(key) + len(state))
        return result

    async def unrecorded_ends(self, **options: Any) -> list[str]:
        result: list[str] = await self._port.unrecorded_ends(**options)
        for task_id in result:
            self._counts.count_read(len(task_id))
        return result

    async def commit(self, *changes: AnyChange) -> tuple[Effect, ...]:
        left: tuple[Effect, ...] = await self._port.commit(*changes)
        self._count(changes, left)
        return left

    async def create_jobs(self, creations: Sequence[JobCreation]) -> list[Any]:
        answers: list[Any] = await self._port.create_jobs(creations)
        for creation, left in zip(creations, answers, strict=True):
            job, tasks = creation.changes()
            if isinstance(left, tuple):
                self._count((job, *tasks), left)
        return answers

    def _count(self, changes: Sequence[AnyChange], left: tuple[Effect, ...]) -> None:
        for change in changes:
            self._counts.count_write(_size(change.row, whole=not change.expected_version))
            for event in change.events:
                self._counts.count_write(_event_size(event))
            for effect in change.effects:
                if isinstance(effect, Enqueue) and effect not in left:
                    self._counts.count_write(len(message_body(effect.task_id)))


class _Queue(_Port):
    async def send(self, messages: Sequence[Any]) -> Any:
        unsent = await self._port.send(messages)
        for message in messages:
            self._counts.count_write(len(message.body))
        return unsent


class _Bus(_Port):
    async def receive(self, consumer: str, **options: Any) -> Any:
        delivery = await self._port.receive(consumer, **options)
        for event in delivery.events if delivery else ():
            self._counts.count_read(_event_size(event))
        return delivery

    async def acknowledge(self, consumer: str, receipt: str) -> None:
        await self._port.acknowledge(consumer, receipt)
        self._counts.count_write(len(consumer) + len(receipt))


class _Blobs(_Port):
    async def get(self, key: str) -> bytes:
        data: bytes = await self._port.get(key)
        self._counts.count_read(len(data))
        return data

    async def put(self, key: str, data: bytes | AsyncIterator[bytes]) -> int:
        size: int = await self._port.put(key, data)
        self._counts.count_write(size)
        return size


def _size(row: TaskRow | JobRow, *, whole: bool) -> int:
    if isinstance(row, JobRow):
        return len(codec.to_json(row))
    changing = {name: value for name, value in row.__dict__.items() if name != "spec"}
    return len(codec.to_json(changing)) + (len(codec.to_json(row.spec)) if whole else 0)


def _event_size(event: Event) -> int:
    return len(codec.to_json(properties_of(event)))
