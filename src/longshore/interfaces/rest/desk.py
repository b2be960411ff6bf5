"""What the routes work with: the services, as the wiring hands them out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from longshore.core.ids import task_id_of
from longshore.core.rows import JobRow, TaskRow
from longshore.errors import NotFound
from longshore.ports.backend import Backend
from longshore.services.access import Access
from longshore.services.adding import Adding
from longshore.services.budgeting import Budgeting
from longshore.services.cancelling import Cancelling
from longshore.services.dead_letters import DeadLetters
from longshore.services.documents import Documents
from longshore.services.explaining import Explaining
from longshore.services.health_check import HealthCheck
from longshore.services.pausing import Pausing
from longshore.services.producer import Producer
from longshore.services.resuming import Resuming
from longshore.services.reviewing import Reviewing


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Everything that a request may need."""

    backend: Backend
    documents: Documents
    producer: Producer
    adding: Adding
    cancelling: Cancelling
    resuming: Resuming
    reviewing: Reviewing
    budgeting: Budgeting
    explaining: Explaining
    dead_letters: DeadLetters
    health_check: HealthCheck
    access: Access
    environment: str  # the name of the stage, as events have it
    events_ttl_days: int = 0  # for how long events are kept; 0: for ever

    @property
    def pausing(self) -> Pausing:
        """Pauses queues."""
        return Pausing(self.backend)

    async def job(self, tenant: str, job_id: str) -> JobRow:
        """A tenant's job; another's is as unknown as one that never was."""
        row = await self.backend.ledger.job(job_id)
        if row is None or row.spec.tenant != tenant:
            raise NotFound("job", job_id[:300])
        return row

    async def task(self, tenant: str, job_id: str, key: str) -> TaskRow:
        """Likewise a task."""
        row = await self.backend.ledger.task(task_id_of(job_id, key))
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", f"{job_id}_{key}"[:300])
        return row


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


AtDesk = Annotated[Desk, Depends(_desk)]
