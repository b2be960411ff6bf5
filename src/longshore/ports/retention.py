"""Retention: removes whole jobs some time after their end, and old events that have no job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol


class Retention(Protocol):
    """Removes jobs in two steps, so that what a crash leaves behind is found again.

    The first step is one commit: it removes the rows, events and output of a job and leaves a
    *tombstone*. The second step removes what nothing refers to any more, its blobs. A tombstone
    keeps the id of the job: while it exists, no job with this id and no task that the job had can
    be created.

    A job has ended when nothing of it can still run: it is not running, its last event was emitted
    and recorded, no intent is open, and each of its tasks has ended or waits for one that failed.
    The time of its end is that of the last change of its row.
    """

    async def ended_jobs(
        self, *, ended_by: datetime, limit: int, tenant: str | None = None
    ) -> list[str]:
        """Returns ids of jobs that ended at or before ``ended_by``, in any order.

        Args:
            tenant: Only the jobs of this tenant; None: of all.
        """
        ...

    async def remove_jobs(
        self, job_ids: Sequence[str], *, ended_by: datetime, remember_until: datetime
    ) -> list[str]:
        """Remove jobs, each with all of its rows, events and output or not at all.

        A job that has not ended by ``ended_by`` stays, also if it was resumed in this moment: the
        resume or the removal comes first, and the other one is refused. Positions of other events
        stay as they are. May remove fewer jobs than named, but at least one of those that can be
        removed, so that a step stays short.

        Returns the ids of the jobs that were removed.
        """
        ...

    async def remove_remains(self, *, now: datetime, limit: int) -> int:
        """Remove the blobs of removed jobs, and tombstones whose time has passed.

        When a tombstone goes, blobs that were stored after the removal go with it.

        Returns how many jobs this call was about; 0: nothing is left to do.
        """
        ...

    async def remove_other_events(self, *, before: datetime, limit: int) -> int:
        """Remove old events of entities without a row, such as queues and the health check.

        The last event of an entity may stay. A backend that is built with the age of these events
        may remove them by itself, at that age.

        Returns how many were removed; fewer than the limit: nothing is left to do.
        """
        ...

    async def is_removed(self, job_id: str) -> bool:
        """Returns whether the job was removed and its tombstone still exists."""
        ...
