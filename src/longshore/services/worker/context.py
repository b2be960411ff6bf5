"""What every attempt of a worker uses, and why one is ended from outside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum

from longshore.core.budgets import NO_BUDGET, Budget
from longshore.core.tasks.lease import LeasePolicy
from longshore.ports.backend import Backend
from longshore.ports.runner import Runner
from longshore.ports.worker_registry import WorkerRegistry
from longshore.services.artifacts import ArtifactPolicy
from longshore.services.budgets import BudgetReservations
from longshore.services.spill import DocumentStore
from longshore.services.transitions import Transitions
from longshore.services.worker.agent_slots import AgentSlots
from longshore.services.worker.output import OutputPolicy


class AttemptStopReason(Enum):
    """Why an attempt is ended from outside."""

    CANCELLED = "a user cancelled it"
    FENCED = "the lease is lost or can no longer be trusted"
    DRAINED = "the worker stops"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What every attempt of a worker uses."""

    worker_id: str
    backend: Backend
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
    jitter: Callable[[], float]
    artifacts: ArtifactPolicy = field(default_factory=ArtifactPolicy)
    agent_slots: AgentSlots = field(default_factory=AgentSlots)
    longest_hold: timedelta = timedelta(minutes=15)  # of a queue whose agents are turned away
    day_budget: Budget = NO_BUDGET  # what a tenant may spend in a day
