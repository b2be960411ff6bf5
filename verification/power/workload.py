"""The workload before a power loss: actions of the services, drawn by a seed, over several boots.

There are no children and no waiting. Actions run one after the other, so a seed always gives the
same operations; some actions run concurrently, and the writer commits them together.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from random import Random
from typing import Any

from longshore.core.api_keys import ApiScope, KeyRecord, hash_key
from longshore.core.budgets import SharedBudget
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import task_document_key
from longshore.core.events.types import Usage
from longshore.core.ids import job_id_of
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.failures import ErrorCategory, Failure
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused
from longshore.ports.output import OutputChunk, Stream
from longshore.testing.clock import FakeClock
from longshore.wiring.services import Services

TENANT = "acme"
_LEASE_DURATION = timedelta(seconds=45)
_ALL_ROWS = 10_000
_NO_TIME = timedelta(0)
# Sizes that are stored in a row, in the database, and in a file.
_SIZES = (100, 100, 3_000, 3_000, 40_000, 70_000, 300_000)


class PowerWorkload:
    """Carries out random actions of every kind."""

    def __init__(self, rng: Random, clock: FakeClock) -> None:
        self._rng = rng
        self._clock = clock
        self._numbers = count(1)
        self._jobs: list[str] = []
        self._keys: list[str] = []
        self._blobs: list[str] = []
        self._leased: dict[str, TaskRow] = {}
        self._output_sequences: dict[tuple[str, int], int] = {}
        self._services: Services

    async def first_boot(self, services: Services, actions: int) -> None:
        """Run on an empty store."""
        self._services = services
        for name in ("plain", "reviewed"):
            await self._define(name)
        await self._submit()
        await self._run_actions(actions)

    async def next_boot(self, services: Services, actions: int) -> None:
        """Run on the store of the last boot: forget all leases, and claim first."""
        self._services = services
        self._leased.clear()
        for _ in range(3):
            await self._claim()
        await self._run_actions(actions)

    async def _run_actions(self, actions: int) -> None:
        weights: dict[Callable[[], Awaitable[None]], int] = {
            self._submit: 4,
            self._claim: 14,
            self._renew: 8,
            self._append_output: 6,
            self._checkpoint: 6,
            self._end: 12,
            self._run_concurrently: 4,
            self._dispatch: 6,
            self._sweep: 2,
            self._cancel: 1,
            self._resume: 2,
            self._review: 4,
            self._change_definitions: 2,
            self._change_keys: 3,
            self._change_blobs: 6,
            self._spend: 3,
        }
        drawn = self._rng.choices(list(weights), list(weights.values()), k=actions)
        for action in drawn:
            self._clock.advance(timedelta(milliseconds=self._rng.randrange(1, 3_000)))
            with contextlib.suppress(CommandRefused):
                await action()

    def _document(self) -> str:
        size = self._rng.choice(_SIZES)
        return f"{next(self._numbers)}:{self._rng.randbytes(size // 2).hex()}"

    async def _define(self, name: str) -> None:
        definition = Definition(
            name=name,
            runner=RunnerKind.PYTHON,
            requires_review=name == "reviewed",
            timeout=timedelta(seconds=self._rng.randrange(60, 600)),
            retry=RetryPolicy(max_attempts=3),
        )
        await self._services.backend.definitions.put(TENANT, definition)

    async def _submit(self) -> None:
        request_id = f"request-{next(self._numbers)}"
        size = self._rng.choice((1, 2, 3, 6))
        tasks: list[dict[str, Any]] = []
        for number in range(size):
            parents = [task["taskId"] for task in tasks if self._rng.random() < 0.4]
            name = self._rng.choice(("plain", "plain", "reviewed"))
            task = {"taskId": f"t{number}", "name": name, "input": self._document()}
            tasks.append(task | ({"dependsOn": parents} if parents else {}))
        await self._services.producer.submit(TENANT, request_id, {"tasks": tasks})
        self._jobs.append(job_id_of(TENANT, request_id))

    async def _random_task(self, state: TaskState) -> TaskRow | None:
        ledger = self._services.backend.ledger
        rows = (await ledger.list_tasks(TENANT, state=state, limit=_ALL_ROWS)).items
        now = self._clock.now()
        due = [row for row in rows if row.due_at is None or row.due_at <= now]
        return self._rng.choice(due) if due else None

    async def _claim(self) -> None:
        if (row := await self._random_task(TaskState.PENDING)) is not None:
            await self._claim_task(row.id)

    async def _claim_task(self, task_id: str) -> None:
        local = self._rng.random() < 0.8
        claimed = await self._apply(task_id, make_claim(self._services, local=local))
        self._leased[claimed.id] = claimed

    async def _apply(self, task_id: str, command: c.Command) -> TaskRow:
        return await self._services.transitions.apply_to_task(task_id, command)

    def _random_leased(self) -> TaskRow | None:
        return self._rng.choice(list(self._leased.values())) if self._leased else None

    async def _renew(self) -> None:
        if (row := self._random_leased()) is not None:
            await self._apply(row.id, c.Renew(fence=row.fence, lease_duration=_LEASE_DURATION))

    async def _append_output(self) -> None:
        if (row := self._random_leased()) is None:
            return
        last = self._output_sequences.get((row.id, row.attempt), 0)
        entries = [
            OutputChunk(
                attempt=row.attempt,
                sequence=sequence,
                at=self._clock.now(),
                stream=Stream.STDOUT,
                data=self._rng.randbytes(self._rng.choice((20, 2_000))),
            )
            for sequence in range(last + 1, last + 1 + self._rng.randrange(1, 4))
        ]
        await self._services.backend.output.append(row.id, entries)
        self._output_sequences[row.id, row.attempt] = entries[-1].sequence

    async def _checkpoint(self) -> None:
        if (row := self._random_leased()) is None:
            return
        key = task_document_key(row.spec.job_id, row.spec.key, f"steps/{next(self._numbers)}")
        await self._services.documents.store_key(key, {"step": "one", "result": self._document()})
        await self._apply(row.id, c.SaveCheckpoint(fence=row.fence, key=key))

    async def _end(self) -> None:
        if (row := self._random_leased()) is not None:
            command = await self._outcome(row)
            del self._leased[row.id]
            await self._apply(row.id, command)

    async def _outcome(self, row: TaskRow) -> c.Command:
        last_output = self._output_sequences.get((row.id, row.attempt))
        current = await self._services.backend.ledger.get_task(row.id)
        if current is not None and current.cancel is not None:
            return c.ConfirmCancel(fence=row.fence, last_output=last_output)
        way = self._rng.choices(("completes", "fails", "released"), (8, 3, 1))[0]
        if way == "completes":
            return await make_completion(self._services, row, self._document(), last_output)
        if way == "released":
            return c.Release(fence=row.fence, reason="a drill", last_output=last_output)
        category = self._rng.choice((ErrorCategory.NETWORK, ErrorCategory.VALIDATION))
        return c.AttemptFailed(
            fence=row.fence,
            failure=Failure(category=category, message="it broke"),
            jitter=self._rng.random(),
            duration=timedelta(seconds=1),
            last_output=last_output,
        )

    async def _run_concurrently(self) -> None:
        """Run promised and unpromised writes in one group of the writer."""
        actions: list[Awaitable[Any]] = [
            self._apply(row.id, c.Renew(fence=row.fence, lease_duration=_LEASE_DURATION))
            for row in list(self._leased.values())[:3]
        ]
        if (pending := await self._random_task(TaskState.PENDING)) is not None:
            actions.append(self._claim_task(pending.id))
        if self._rng.random() < 0.5:
            actions.append(self._add_key())
        await asyncio.gather(*actions, return_exceptions=True)

    async def _dispatch(self) -> None:
        while await self._services.dispatcher.step(_NO_TIME):
            pass

    async def _sweep(self) -> None:
        self._clock.advance(timedelta(seconds=self._rng.choice((1, 60))))
        await self._services.sweeper.sweep()

    async def _cancel(self) -> None:
        await self._services.operator_commands.cancel_job(
            self._rng.choice(self._jobs), by="operator"
        )

    async def _resume(self) -> None:
        for state in (TaskState.FAILED, TaskState.CANCELLED):
            if (row := await self._random_task(state)) is not None:
                await self._services.operator_commands.resume(
                    row.spec.job_id, [row.id], by="operator"
                )

    async def _review(self) -> None:
        if (row := await self._random_task(TaskState.IN_REVIEW)) is not None:
            approves = self._rng.random() < 0.7
            again = c.RequestRevision(feedback="once more", by="operator")
            await self._apply(row.id, c.Approve(by="operator") if approves else again)

    async def _change_definitions(self) -> None:
        if self._rng.random() < 0.3:
            await self._services.backend.definitions.delete(TENANT, "spare")
        else:
            await self._define(self._rng.choice(("plain", "reviewed", "spare")))

    async def _change_keys(self) -> None:
        if self._keys and self._rng.random() < 0.4:
            key_id = self._keys.pop()
            await self._services.backend.keys.revoke(TENANT, key_id, now=self._clock.now())
        else:
            await self._add_key()

    async def _add_key(self) -> None:
        key_id = f"key-{next(self._numbers)}"
        record = KeyRecord(
            id=key_id,
            tenant=TENANT,
            name="a key",
            scopes=frozenset({ApiScope.READ}),
            hash=hash_key(key_id),
            created_at=self._clock.now(),
        )
        await self._services.backend.keys.add(record)
        self._keys.append(key_id)

    async def _change_blobs(self) -> None:
        """Write and delete blobs that no row refers to."""
        blobs = self._services.backend.blobs
        key = f"spare/{self._rng.randrange(3)}"
        if self._rng.random() < 0.3:
            await blobs.delete(key)
        else:
            await blobs.put(key, self._rng.randbytes(self._rng.choice((3_000, 70_000))))

    async def _spend(self) -> None:
        """Spend from one of three budgets."""
        budgets = self._services.backend.budgets
        name = f"spare/{self._rng.randrange(3)}"
        current = await budgets.get(TENANT, name) or SharedBudget(tenant=TENANT, name=name)
        spent = current.closed_usage + Usage(turns=1, cost_usd=self._rng.random())
        change_id = f"change-{next(self._numbers)}"
        version = current.version + 1
        await budgets.commit(
            replace(current, version=version, change_id=change_id, closed_usage=spent)
        )


def make_claim(services: Services, *, local: bool = True) -> c.Claim:
    """The claim of a worker, on this machine or on another."""
    epoch = services.backend.ledger.epoch
    return c.Claim(
        worker_id="worker", process_id=1, lease_duration=_LEASE_DURATION, epoch=epoch, local=local
    )


async def make_completion(
    services: Services, row: TaskRow, result: str, last_output: int | None
) -> c.Complete:
    """The outcome of an attempt that succeeded; its result is stored first."""
    key = task_document_key(row.spec.job_id, row.spec.key, f"result-{row.attempt}")
    document = await services.documents.store(result, key)
    return c.Complete(
        fence=row.fence, result=document, duration=timedelta(seconds=1), last_output=last_output
    )
