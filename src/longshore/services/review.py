"""Reviews: a reviewer approves the result of a task, or requests a revision.

A decision is about the result that the reviewer saw. An attempt's result never changes, so a caller
that passes the attempt's number cannot decide about a newer result by mistake. A request that is
repeated because its answer was lost succeeds: the history shows that the decision was made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from longshore.core.events.event import Event
from longshore.core.events.types import (
    TaskApproved,
    TaskProcessingStarted,
    TaskRevisionRequested,
)
from longshore.core.tasks.commands import Approve, RequestRevision
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, NotFound, OutcomeUnknown
from longshore.ports.backend import Backend
from longshore.services.dispatcher import Dispatcher
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)


class ReviewDecisions:
    """Carries out the decisions of reviewers."""

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
        """Approve a task's result; its dependents may then run.

        Args:
            attempt: The attempt whose result was seen; None: the one in review.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it is not in review, or with the result of another attempt.
        """
        row = await self._row(tenant, task_id)
        seen = _attempt_in_review(row) if attempt is None else attempt
        command = Approve(by=by, attempt=row.attempt if seen is None else seen)
        try:
            row = await self._transitions.apply_to_task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._already_decided(seen, row, command):
                raise
        else:
            logger.info("task.approved", extra={"task_id": task_id, "by": by})
        await self._dispatcher.settle([task_id])
        return row

    async def revise(
        self, tenant: str, task_id: str, *, by: str, feedback: str, attempt: int | None = None
    ) -> TaskRow:
        """Request a revision: the next attempt receives the current result and the feedback.

        Args:
            attempt: The attempt whose result was seen; None: the one in review.

        Raises:
            NotFound: the tenant has no such task.
            CommandRefused: it is not in review, or with the result of another attempt; it was
                revised too often already; or the feedback is empty or too long.
        """
        row = await self._row(tenant, task_id)
        seen = _attempt_in_review(row) if attempt is None else attempt
        about = row.attempt if seen is None else seen
        command = RequestRevision(by=by, feedback=feedback, attempt=about)
        try:
            row = await self._transitions.apply_to_task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._already_decided(seen, row, command):
                raise
        else:
            extra = {"task_id": task_id, "by": by, "revision": row.revision}
            logger.info("task.revision_requested", extra=extra)
        return row

    async def _row(self, tenant: str, task_id: str) -> TaskRow:
        row = await self._transitions.retry_unavailable(lambda: self._ledger.get_task(task_id))
        if row is None or row.spec.tenant != tenant:
            raise NotFound("task", task_id)
        return row

    async def _already_decided(
        self, attempt: int | None, row: TaskRow, command: Approve | RequestRevision
    ) -> bool:
        """Whether this decision was made before and its answer lost.

        ``attempt`` is the attempt that it is about; None: the one of the last decision.
        """
        if row.state is TaskState.IN_REVIEW and row.attempt == command.attempt:
            return False
        history = await self._transitions.retry_unavailable(lambda: self._history(row))
        decisions = list(_decisions(history))
        if attempt is None and decisions:
            return decisions[-1] == replace(command, attempt=decisions[-1].attempt)
        return command in decisions

    async def _history(self, row: TaskRow) -> list[Event]:
        """Returns the events of the task, up to the row's last sequence."""
        events: list[Event] = []
        entity = f"TASK#{row.id}"
        while page := await self._events.history(row.spec.tenant, entity, after=len(events)):
            events += page
        if len(events) < row.last_sequence:
            # Where events are stored after their row, a missing event may still arrive.
            message = f"events of {row.id} are not readable yet; try again"
            raise OutcomeUnknown(message)
        return events


def _attempt_in_review(row: TaskRow) -> int | None:
    """Returns the attempt whose result is in review."""
    return row.attempt if row.state is TaskState.IN_REVIEW else None


def _decisions(history: Iterable[Event]) -> Iterator[Approve | RequestRevision]:
    """Yields the decisions of reviewers, each about the last attempt before it."""
    attempt = 0
    for event in history:
        match event.body:
            case TaskProcessingStarted():
                attempt = event.body.attempt_number
            case TaskApproved(by=by):
                yield Approve(by=by, attempt=attempt)
            case TaskRevisionRequested(by=by, feedback=feedback):
                yield RequestRevision(by=by, feedback=feedback, attempt=attempt)
