"""Removes jobs some time after their end, in small steps.

A step is one commit of the backend, so other writers never wait long, and a process that dies loses
at most a step that the next sweep repeats.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta

from longshore.ports.backend import Backend
from longshore.services.reads import AT_ONCE

logger = logging.getLogger(__name__)

_SWEEP_LIMIT = timedelta(seconds=10)  # other repairs wait meanwhile
_JOBS_OF_A_CALL = 1000
_DRY_RUN_LIMIT = 100_000
# A client may repeat a request whose answer was lost, however short the retention.
_SHORTEST_MEMORY = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetention:
    """Removes ended jobs, and remembers their request ids for as long again.

    Args:
        keep_for: How long a job is kept after its end; zero: until an operator removes it.
        keep_other_events_for: How long events without a job are kept; zero: forever.
    """

    backend: Backend
    keep_for: timedelta
    keep_other_events_for: timedelta = timedelta(0)

    async def remove_expired(self) -> None:
        """Remove jobs that have been kept long enough; what is left is for the next call."""
        if self.backend.retention is None:
            return
        elapsed = self.backend.clock.elapsed
        deadline = elapsed() + _SWEEP_LIMIT
        progress = 1
        while progress and elapsed() < deadline:
            progress = await self._remove_some(self.keep_for) if self.keep_for else 0
            # Also of jobs that an operator or a process that died has removed.
            progress += await self._remove_remains()
            progress += await self._remove_other_events()

    async def prune(
        self, tenant: str, older_than: timedelta, *, dry_run: bool = False
    ) -> tuple[int, bool]:
        """Remove a tenant's jobs that ended long enough ago, up to a limit.

        Returns how many, and whether there may be more.

        Args:
            dry_run: Only count them.

        Raises:
            UsageError: the backend cannot remove jobs.
        """
        if dry_run:
            ended_by = self.backend.clock.now() - older_than
            ids = await self.backend.require_retention().ended_jobs(
                ended_by=ended_by, limit=_DRY_RUN_LIMIT, tenant=tenant
            )
            return len(ids), len(ids) == _DRY_RUN_LIMIT
        removed, step = 0, 1
        while step and removed < _JOBS_OF_A_CALL:
            step = await self._remove_some(older_than, tenant)
            removed += step
            await self._remove_remains()
        return removed, step > 0

    async def _remove_some(self, older_than: timedelta, tenant: str | None = None) -> int:
        now, port = self.backend.clock.now(), self.backend.require_retention()
        ended_by = now - older_than
        ids = await port.ended_jobs(ended_by=ended_by, limit=AT_ONCE, tenant=tenant)
        if not ids:
            return 0
        memory = max(older_than, self.keep_for, _SHORTEST_MEMORY)
        removed = await port.remove_jobs(ids, ended_by=ended_by, remember_until=now + memory)
        logger.info("jobs.removed", extra={"jobs": len(removed)})
        return len(removed)

    async def _remove_other_events(self) -> int:
        if not self.keep_other_events_for:
            return 0
        before = self.backend.clock.now() - self.keep_other_events_for
        port = self.backend.require_retention()
        return await port.remove_other_events(before=before, limit=AT_ONCE)

    async def _remove_remains(self) -> int:
        now = self.backend.clock.now()
        return await self.backend.require_retention().remove_remains(now=now, limit=AT_ONCE)
