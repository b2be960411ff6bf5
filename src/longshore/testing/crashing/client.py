"""The client of the workload: submits, cancels, replays, and uses whatever else a backend has.

It can be killed anywhere and be started again from the beginning, as a user's program would be:
everything it does is either the same request again or depends on what it finds. What it was
answered it notes, because an answer is a promise.
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

from longshore.core.budgets import Account
from longshore.core.dead_letters import DeadFilter
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.keys import KeyRecord, Scope, hash_of
from longshore.core.limits import RECEIVE_LIMIT
from longshore.core.messages import body_for
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import AlreadyExists, CommandRefused
from longshore.ports.queue import Message, Outgoing
from longshore.ports.queues import LONGEST_HOLD
from longshore.testing.crashing import tasks
from longshore.testing.crashing.tasks import note, noted
from longshore.testing.crashing.workload import (
    BROKEN,
    DEAF,
    DELAYED,
    LOST_QUEUE,
    QUEUE,
    QUICK,
    SLOW,
    TENANT,
    Wanted,
    definition_of_quick,
    jobs,
    notes_in,
)
from longshore.wiring import Services

ResultT = TypeVar("ResultT")

ANSWERS = "answers"
KEY = KeyRecord(
    id="crash-key",
    tenant=TENANT,
    name="crash",
    scopes=frozenset({Scope.READ}),
    hash=hash_of("lsk_crash"),
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
)
GONE_DEFINITION = "crash-gone"
BLOB, BLOB_BYTES = "crash/blob", b"b" * tasks.LARGE_BYTES
GONE_BLOB = "crash/gone"
PAUSED_QUEUE, RESUMED_QUEUE = "crash-paused", "crash-resumed"
ACCOUNT = Account(
    tenant=TENANT, name="crash", version=2, change_id="crash-2", closed=Usage(cost_usd=0.1 + 0.2)
)
_ACCOUNT_BEFORE = replace(ACCOUNT, version=1, change_id="crash-1", closed=Usage(cost_usd=0.1))
_BY = "crash-client"
_LOOK_EVERY = timedelta(milliseconds=5)


class Client:
    """One life of it."""

    def __init__(self, services: Services, folder: Path) -> None:
        self._services = services
        self._backend = services.backend
        self._notes = notes_in(folder)
        self._jobs = jobs(self._notes)

    async def play(self, *, to_the_end: bool) -> None:
        """Return when all has ended; before the end, when nothing but the slow task is left."""
        await self._use_what_else_there_is()
        for wanted in self._jobs:
            await self._submit(wanted)
        await asyncio.gather(
            self._cancel_the_deaf(),
            self._replay_the_broken(),
            self._wear_out_a_message(),
            self._tell_twice(),
        )
        for wanted in self._jobs:
            if wanted.request_id != SLOW or to_the_end:
                await self._until(partial(self._ended, wanted))
        if not to_the_end:
            await self._until(lambda: self._begun(SLOW))

    def _answered(self, text: str) -> None:
        note(self._notes / ANSWERS, text)

    async def _use_what_else_there_is(self) -> None:
        backend = self._backend
        with contextlib.suppress(AlreadyExists):
            await backend.keys.add(KEY)
        await backend.keys.revoke(TENANT, KEY.id, now=backend.clock.now())
        self._answered("key revoked")
        await backend.definitions.put(TENANT, definition_of_quick(self._notes))
        await backend.definitions.put(
            TENANT, Definition(name=GONE_DEFINITION, runner=RunnerKind.COMMAND)
        )
        await backend.definitions.delete(TENANT, GONE_DEFINITION)
        self._answered("definition deleted")
        # Twice: the second one replaces a file.
        for data in (b"old" * tasks.LARGE_BYTES, BLOB_BYTES):
            await backend.blobs.put(BLOB, data)
        await backend.blobs.put(GONE_BLOB, BLOB_BYTES)
        await backend.blobs.delete(GONE_BLOB)
        self._answered("blob put")
        for name in (PAUSED_QUEUE, RESUMED_QUEUE):
            await backend.queues.pause(name, by=_BY, now=backend.clock.now())
        now = backend.clock.now()
        await backend.queues.hold(
            RESUMED_QUEUE, until=now + LONGEST_HOLD, by=_BY, reason="a limit", now=now
        )
        await backend.queues.resume(RESUMED_QUEUE)
        self._answered("queue resumed")
        await self._spend()

    async def _spend(self) -> None:
        """Twice: the second time from what is there."""
        accounts = self._backend.accounts
        for wanted in (_ACCOUNT_BEFORE, ACCOUNT):
            there = await accounts.account(TENANT, ACCOUNT.name)
            if there is None or there.version < wanted.version:
                await accounts.commit(wanted)
        self._answered("spent")

    async def _submit(self, wanted: Wanted) -> None:
        accepted = await self._services.producer.submit(TENANT, wanted.request_id, wanted.document)
        self._answered(f"{'created' if accepted.created else 'known'} {wanted.request_id}")

    async def _ring_too_much(self) -> None:
        """A message that is none, a bell for a task that is not due, and one for a held task."""
        await self._until(lambda: self._begun(DEAF))
        bodies = ("not JSON", body_for(_only_task(DELAYED)), body_for(_only_task(DEAF)))
        await self._backend.queue.send([Outgoing(queue=QUEUE, body=body) for body in bodies])

    async def _cancel_the_deaf(self) -> None:
        await self._ring_too_much()
        with contextlib.suppress(CommandRefused):
            await self._services.cancelling.cancel(job_id_of(TENANT, DEAF), by=_BY)
        self._answered("cancelled")

    async def _replay_the_broken(self) -> None:
        task_id = _only_task(BROKEN)
        while True:
            row = await self._until(lambda: self._with_an_end(task_id))
            if row.state is TaskState.COMPLETED:
                return
            note(self._notes / tasks.MENDED, "by the client")
            # Whoever has to run it may be killed again, and it has but one attempt a round.
            replayed = await self._services.dead_letters.replay(TENANT, [task_id], by=_BY)
            self._answered(f"replayed in round {replayed.rounds.get(task_id, 0)}")

    async def _wear_out_a_message(self) -> None:
        """Receive one so often that it becomes a dead letter; it leads nowhere and is discarded."""
        queue, dead = self._backend.queue, self._services.dead_letters
        await queue.send([Outgoing(queue=LOST_QUEUE, body="worn out")])

        def receive() -> Awaitable[list[Message]]:
            at_once = timedelta(0)
            return queue.receive([LOST_QUEUE], limit=1, hidden_for=at_once, wait=at_once)

        # Until one of them gets nothing.
        while all(await asyncio.gather(*(receive() for _ in range(RECEIVE_LIMIT + 1)))):
            pass
        letters = dead.matching(TENANT, DeadFilter(queue=LOST_QUEUE))
        for letter in [letter async for letter in letters]:
            await dead.discard(TENANT, letter.id, by=_BY)

    async def _tell_twice(self) -> None:
        """Events that have been told are recorded and published once more."""
        entity = f"JOB#{job_id_of(TENANT, QUICK)}"
        told = await self._backend.events.history(TENANT, entity)
        await self._backend.events.record(told)
        await self._backend.bus.publish(told)

    async def _begun(self, key: str) -> bool:
        """Whether it runs now, or has ended."""
        row = await self._row(_only_task(key))
        begun = f"begin {row.attempt} "
        running = row.state is TaskState.PROCESSING
        return row.state.terminal or (
            running and any(line.startswith(begun) for line in noted(self._notes / key))
        )

    async def _ended(self, wanted: Wanted) -> bool:
        job = await self._backend.ledger.job(wanted.job_id)
        return job is not None and job.state.terminal

    async def _with_an_end(self, task_id: str) -> TaskRow | None:
        row = await self._row(task_id)
        return row if row.state.terminal else None

    async def _row(self, task_id: str) -> TaskRow:
        row = await self._backend.ledger.task(task_id)
        assert row is not None, task_id
        return row

    async def _until(self, look: Callable[[], Awaitable[ResultT | None]]) -> ResultT:
        while not (found := await look()):
            await self._backend.clock.sleep(_LOOK_EVERY)
        return found


def _only_task(name: str) -> str:
    return task_id_of(job_id_of(TENANT, name), name)
