"""Reviewing: a person looks at a task's result, and accepts it or wants the work done again.

A decision is about the result that was seen. An attempt names its result for good, so whoever
passes its number never approves, or sends back, a newer one by mistake. One who asks again because
the answer was lost is told that it is done: the history knows who has decided what.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from longshore.core.commands import Approve, RequestRevision
from longshore.core.events.event import Event
from longshore.core.events.types import (
    TaskApproved,
    TaskProcessingStarted,
    TaskRevisionRequested,
)
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
        seen = _seen(row) if attempt is None else attempt
        command = Approve(by=by, attempt=row.attempt if seen is None else seen)
        try:
            row = await self._transitions.task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._made(seen, row, command):
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
        seen = _seen(row) if attempt is None else attempt
        about = row.attempt if seen is None else seen
        command = RequestRevision(by=by, feedback=feedback, attempt=about)
        try:
            row = await self._transitions.task(task_id, command, row=row)
        except CommandRefused:
            row = await self._row(tenant, task_id)
            if not await self._made(seen, row, command):
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

    async def _made(self, seen: int | None, row: TaskRow, wish: Approve | RequestRevision) -> bool:
        """Whether this very decision has been made, and only its answer was lost.

        ``seen`` is the attempt that it is about; None: whichever was decided about last.
        """
        if row.state is TaskState.IN_REVIEW and row.attempt == wish.attempt:
            return False
        told = await self._transitions.persistently(lambda: self._history(row))
        made = list(_decisions(told))
        if seen is None and made:
            return made[-1] == replace(wish, attempt=made[-1].attempt)
        return wish in made

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


def _seen(row: TaskRow) -> int | None:
    """The attempt whose result is there to be seen."""
    return row.attempt if row.state is TaskState.IN_REVIEW else None


def _decisions(told: Iterable[Event]) -> Iterator[Approve | RequestRevision]:
    """What reviewers decided, each about the attempt that had begun last."""
    attempt = 0
    for event in told:
        match event.body:
            case TaskProcessingStarted():
                attempt = event.body.attempt_number
            case TaskApproved(by=by):
                yield Approve(by=by, attempt=attempt)
            case TaskRevisionRequested(by=by, feedback=feedback):
                yield RequestRevision(by=by, feedback=feedback, attempt=attempt)
