"""Reviewing: a person looks at a task's result, and accepts it or wants the work done again.

A decision is about the result that was seen. An attempt names its result for good, so whoever
passes its number never approves, or sends back, a newer one by mistake. One who asks again because
the answer was lost is told that it is done: the history knows who has decided what.
"""

from __future__ import annotations

import logging

from longshore.core.commands import Approve, RequestRevision
from longshore.core.events.event import Event
from longshore.core.events.types import TaskApproved, TaskRevisionRequested
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import CommandRefused, NotFound, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)


class Reviewing:
    """Carries out what reviewers decide."""

    def __init__(
        self, *, backend: Backend, transitions: Transitions, dispatcher: Dispatcher
    ) -> None:
        self._ledger = backend.ledger
        self._events = backend.events
        self._transitions = transitions
        self._dispatcher = dispatcher

    async def approve(
        self, tenant: str, task_id: str, *, by: str, attempt: int | None = None
    ) -> TaskRow:
        """Accept a task's result; once this returns, what waited for the task goes on.

        Args:
            attempt: The one whose result was seen; None: whichever is in review.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it is not in review, or with the result of another attempt.
        """
        row = await self._row(tenant, task_id)
        command = Approve(by=by, attempt=row.attempt if attempt is None else attempt)
        try:
            row = await self._transitions.task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._approved(row, command):
                raise
        else:
            logger.info("task.approved", extra={"task_id": task_id, "by": by})
        await self._dispatcher.settle([task_id])
        return row

    async def request_revision(
        self, tenant: str, task_id: str, *, by: str, feedback: str, attempt: int | None = None
    ) -> TaskRow:
        """Have the work done again: the next attempt gets the result that was seen, and this.

        Args:
            attempt: The one whose result was seen; None: whichever is in review.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it is not in review, or with the result of another attempt; it was
                revised too often already; or the feedback is empty or too long.
        """
        row = await self._row(tenant, task_id)
        seen = row.attempt if attempt is None else attempt
        command = RequestRevision(by=by, feedback=feedback, attempt=seen)
        try:
            row = await self._transitions.task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._sent_back(row, command):
                raise
        else:
            extra = {"task_id": task_id, "by": by, "revision": row.revision}
            logger.info("task.revision_requested", extra=extra)
        return row

    async def _row(self, tenant: str, task_id: str) -> TaskRow:
        row = await self._transitions.persistently(lambda: self._ledger.task(task_id))
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        return row

    async def _approved(self, row: TaskRow, command: Approve) -> bool:
        """Whether this very decision has been made, and only its answer was lost."""
        if row.state is not TaskState.COMPLETED or row.attempt != command.attempt:
            return False
        return await self._last_by(row, TaskApproved) == command.by

    async def _sent_back(self, row: TaskRow, command: RequestRevision) -> bool:
        still_there = row.state is TaskState.IN_REVIEW and row.attempt == command.attempt
        if still_there or row.feedback != command.feedback:
            return False
        return await self._last_by(row, TaskRevisionRequested) == command.by

    async def _last_by(
        self, row: TaskRow, kind: type[TaskApproved | TaskRevisionRequested]
    ) -> str | None:
        """Who last decided so about this task."""
        told = await self._transitions.persistently(lambda: self._history(row))
        deciders = [event.body.by for event in told if isinstance(event.body, kind)]
        return deciders[-1] if deciders else None

    async def _history(self, row: TaskRow) -> list[Event]:
        """All that was told of the task, up to where its row is."""
        found: list[Event] = []
        entity = f"TASK#{row.id}"
        while page := await self._events.history(row.spec.tenant, entity, after=len(found)):
            found += page
        if len(found) < row.last_sequence:
            # Where events come later than their row, one that is not there may still come.
            message = f"what was told of {row.id} is still on its way"
            raise OutcomeUnknown(message)
        return found
