"""The client of the workload: submits, cancels, replays, and uses every other part of a backend.

It can be killed anywhere and be started again from the beginning, as a user's program would be:
each of its calls either repeats the same request or depends on what is stored. It notes each
answer, because an answer is a promise.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from longshore.core.api_keys import ApiScope, KeyRecord, hash_key
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.queues import MAX_HOLD
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import AlreadyExists, CommandRefused, JobRemoved
from longshore.wiring.services import Services
from verification.crash import tasks
from verification.crash.tasks import append_note, read_notes
from verification.crash.workload import (
    BROKEN,
    DEAF,
    REMOVED,
    SLOW,
    SPAWNED,
    TENANT,
    ExpectedJob,
    jobs,
    notes_folder,
    quick_definition,
)

ResultT = TypeVar("ResultT")

ANSWERS = "answers"
KEY = KeyRecord(
    id="crash-key",
    tenant=TENANT,
    name="crash",
    scopes=frozenset({ApiScope.READ}),
    hash=hash_key("lsk_crash"),
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
)
DELETED_DEFINITION = "crash-gone"
BLOB, BLOB_BYTES = "crash/blob", b"b" * tasks.LARGE_BYTES
DELETED_BLOB = "crash/gone"
PAUSED_QUEUE, RESUMED_QUEUE = "crash-paused", "crash-resumed"
BUDGET = SharedBudget(
    tenant=TENANT,
    name="crash",
    version=2,
    change_id="crash-2",
    closed_usage=Usage(cost_usd=0.1 + 0.2),
)
_BUDGET_BEFORE = replace(BUDGET, version=1, change_id="crash-1", closed_usage=Usage(cost_usd=0.1))
_BY = "crash-client"
_POLL_INTERVAL = timedelta(milliseconds=5)


class CrashClient:
    """One run of the client, from its start to its end or its kill."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services = services
        self._backend = services.backend
        self._notes = notes_folder(folder)
        self._jobs = jobs(self._notes)

    async def run(self, *, until_done: bool) -> None:
        """Return when all jobs have ended, or when only the slow one has not."""
        await self._use_other_ports()
        for expected in self._jobs:
            await self._submit(expected)
        await asyncio.gather(self._cancel_deaf(), self._replay_broken(), self._remove_job())
        for expected in self._jobs:
            if expected.request_id != SLOW or until_done:
                await self._poll(partial(self._has_ended, expected))
        if not until_done:
            await self._poll(lambda: self._has_started(SLOW))

    def _record_answer(self, text: str) -> None:
        append_note(self._notes / ANSWERS, text)

    async def _use_other_ports(self) -> None:
        backend = self._backend
        with contextlib.suppress(AlreadyExists):
            await backend.keys.add(KEY)
        await self._services.api_keys.revoke(TENANT, KEY.id, by=_BY)
        self._record_answer("key revoked")
        await backend.definitions.put(TENANT, quick_definition(self._notes))
        await backend.definitions.put(TENANT, SPAWNED)
        await backend.definitions.put(
            TENANT, Definition(name=DELETED_DEFINITION, runner=RunnerKind.COMMAND)
        )
        await backend.definitions.delete(TENANT, DELETED_DEFINITION)
        self._record_answer("definition deleted")
        # Twice: the second write replaces a file.
        for data in (b"old" * tasks.LARGE_BYTES, BLOB_BYTES):
            await backend.blobs.put(BLOB, data)
        await backend.blobs.put(DELETED_BLOB, BLOB_BYTES)
        await backend.blobs.delete(DELETED_BLOB)
        self._record_answer("blob put")
        for name in (PAUSED_QUEUE, RESUMED_QUEUE):
            await backend.queue_controls.pause(name, by=_BY, now=backend.clock.now())
        now = backend.clock.now()
        await backend.queue_controls.hold(
            RESUMED_QUEUE, until=now + MAX_HOLD, by=_BY, reason="a limit", now=now
        )
        await backend.queue_controls.resume(RESUMED_QUEUE)
        self._record_answer("queue resumed")
        await self._spend()

    async def _spend(self) -> None:
        """Spend twice; the second commit follows from the first."""
        budgets = self._backend.budgets
        for expected in (_BUDGET_BEFORE, BUDGET):
            existing = await budgets.get(TENANT, BUDGET.name)
            if existing is None or existing.version < expected.version:
                await budgets.commit(expected)
        self._record_answer("spent")

    async def _submit(self, expected: ExpectedJob) -> None:
        accepted = await self._services.producer.submit(
            TENANT, expected.request_id, expected.document
        )
        self._record_answer(f"{'created' if accepted.created else 'known'} {expected.request_id}")

    async def _cancel_deaf(self) -> None:
        await self._poll(lambda: self._has_started(DEAF))
        with contextlib.suppress(CommandRefused):
            await self._services.operator_commands.cancel_job(job_id_of(TENANT, DEAF), by=_BY)
        self._record_answer("cancelled")

    async def _replay_broken(self) -> None:
        task_id = _single_task_id(BROKEN)
        while True:
            row = await self._poll(lambda: self._ended_row(task_id))
            if row.state is TaskState.COMPLETED:
                return
            append_note(self._notes / tasks.REPAIRED, "by the client")
            # Its worker may be killed again, and the task has one attempt per round.
            replayed = await self._services.dead_letters.replay(TENANT, [task_id], by=_BY)
            rounds = [item.round for item in replayed.replayed]
            self._record_answer(f"replayed in rounds {rounds}")

    async def _remove_job(self) -> None:
        """Run a job, and remove it with a large blob; a client that was killed repeats it."""
        port, now = self._backend.require_retention(), self._backend.clock.now
        with contextlib.suppress(JobRemoved):
            await self._submit(REMOVED)
            await self._poll(partial(self._has_ended, REMOVED))
            await self._backend.blobs.put(f"jobs/{REMOVED.job_id}/large.json", BLOB_BYTES)
            await self._poll(
                lambda: port.remove_jobs(
                    [REMOVED.job_id], ended_by=now(), remember_until=now() + timedelta(days=1)
                )
            )
        await port.remove_remains(now=now(), limit=10)
        await port.remove_other_events(before=now() - timedelta(days=1), limit=10)
        self._record_answer("job removed")

    async def _has_started(self, key: str) -> bool:
        """Whether the task is running or has ended."""
        row = await self._backend.ledger.get_task(_single_task_id(key))
        if row is None:  # lost after it was accepted; the run times out if nothing submits it again
            return False
        begun = f"begin {row.attempt} "
        running = row.state is TaskState.PROCESSING
        return row.state.terminal or (
            running and any(line.startswith(begun) for line in read_notes(self._notes / key))
        )

    async def _has_ended(self, expected: ExpectedJob) -> bool:
        job = await self._backend.ledger.get_job(expected.job_id)
        return job is not None and job.state.terminal

    async def _ended_row(self, task_id: str) -> TaskRow | None:
        row = await self._row(task_id)
        return row if row.state.terminal else None

    async def _row(self, task_id: str) -> TaskRow:
        row = await self._backend.ledger.get_task(task_id)
        assert row is not None, task_id
        return row

    async def _poll(self, condition: Callable[[], Awaitable[ResultT | None]]) -> ResultT:
        while not (result := await condition()):
            await self._backend.clock.sleep(_POLL_INTERVAL)
        return result


def _single_task_id(name: str) -> str:
    return task_id_of(job_id_of(TENANT, name), name)
