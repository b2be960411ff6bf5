"""What a worker and every attempt of it use, and why an attempt is ended from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from longshore.core.budgets import NO_BUDGET, Budget
from longshore.core.claims import DefinitionVersion
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.documents import Document
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.rows import TaskRow
from longshore.ports.backend import Backend
from longshore.ports.child_slots import ChildSlots, SlotListener
from longshore.ports.runner import AttemptSpec, Runner
from longshore.ports.task_source import TaskSource
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.budgets import BudgetReservations
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions

# Pause before a task without a process is released: it doubles each time.
_FIRST_PAUSE = timedelta(seconds=1)
_LONGEST_PAUSE = timedelta(seconds=30)
_MOST_DOUBLINGS = 5
MICROSECOND = timedelta(microseconds=1)


class AgentSlots:
    """Limits how many agents one worker runs at once; other runners are not limited."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = None if limit is None else asyncio.Semaphore(max(limit, 1))

    async def acquire(self, spec: AttemptSpec, ended: asyncio.Future[Any]) -> bool:
        """Wait for a slot. Returns False if the attempt was asked to stop before.

        An acquired slot must be released.
        """
        if self._slots is None or spec.definition.runner is not RunnerKind.AGENT:
            return True
        waiting = asyncio.ensure_future(self._slots.acquire())
        acquired = False
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
            acquired = waiting.done() and not ended.done()
        finally:
            if not acquired and not waiting.cancel():
                self._slots.release()  # the slot was acquired at the same moment
        return acquired

    def release(self, spec: AttemptSpec) -> None:
        """Free the slot of an attempt."""
        if self._slots is not None and spec.definition.runner is RunnerKind.AGENT:
            self._slots.release()


def pause_before_release(row: TaskRow) -> timedelta:
    """Returns how long to wait before a task without a process is released."""
    uncounted = max(row.attempt - 1 - row.attempts_used, 0)
    return min(_FIRST_PAUSE * (1 << min(uncounted, _MOST_DOUBLINGS)), _LONGEST_PAUSE)


def to_ns(duration: timedelta) -> int:
    """Returns a moment of the clock as children and reapers read it."""
    return duration // MICROSECOND * 1000


class AttemptStopReason(Enum):
    """Why an attempt is ended from outside."""

    CANCELLED = "a user cancelled it"
    FENCED = "the lease is lost or can no longer be trusted"
    DRAINED = "the worker stops"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputPolicy:
    """How output is batched and limited."""

    flush_after: timedelta = timedelta(milliseconds=50)
    batch_bytes: int = 256 * 1024
    limit_bytes: int = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactPolicy:
    """Limits of the files that are stored of one attempt."""

    limit_files: int = 1_000
    limit_bytes: int = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a worker and every attempt of it use."""

    worker_id: str
    backend: Backend
    source: TaskSource
    transitions: Transitions
    documents: DocumentStore
    reservations: BudgetReservations
    runner: Runner
    worker_registry: WorkerRegistry
    lease: LeasePolicy
    output: OutputPolicy
    timeout: timedelta
    result_limit_bytes: int
    process_id: int
    queues: tuple[str, ...] = ("default",)
    concurrency: int = 3
    poll_wait: timedelta = timedelta(seconds=20)
    drain_grace: timedelta = timedelta(seconds=30)
    jitter: Callable[[], float]
    artifacts: ArtifactPolicy = field(default_factory=ArtifactPolicy)
    agent_slots: AgentSlots = field(default_factory=AgentSlots)
    longest_hold: timedelta = timedelta(minutes=15)  # of a queue whose agents are turned away
    day_budget: Budget = NO_BUDGET  # what a tenant may spend in a day
    # What was read and does not change any more: definitions, and results of completed tasks.
    definition_cache: dict[DefinitionVersion, Definition] = field(default_factory=dict)
    result_cache: dict[str, Document | None] = field(default_factory=dict)
    # Opens child slots that report to a listener; None: the runner starts every attempt.
    make_slots: Callable[[SlotListener], ChildSlots] | None = None
