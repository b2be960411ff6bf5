"""Reads histories as they grow: each asking gives the events that were not given before."""

from __future__ import annotations

from collections.abc import AsyncIterator

from longshore.core.events.event import Event
from longshore.ports.backend import Backend

_PAGE = 500


class EntityHistory:
    """One entity's events, by sequence."""

    def __init__(self, backend: Backend, tenant: str, entity: str, *, after: int = 0) -> None:
        self._log = backend.events
        self._tenant = tenant
        self._entity = entity
        self._seen = after

    async def more(self) -> AsyncIterator[Event]:
        """What was not given before."""
        while page := await self._log.history(
            self._tenant, self._entity, after=self._seen, limit=_PAGE
        ):
            for event in page:
                yield event
            self._seen = page[-1].sequence


class JobHistory:
    """The events of a job and all its tasks, as they were recorded.

    The last page of a query has no cursor to what will follow it, so it is read again from its
    beginning, and what was given already is passed over.
    """

    def __init__(self, backend: Backend, tenant: str, job_id: str) -> None:
        self._log = backend.events
        self._tenant = tenant
        self._job_id = job_id
        self._cursor: str | None = None
        self._given = 0

    async def more(self) -> AsyncIterator[Event]:
        """What was not given before."""
        while True:
            page = await self._log.query(
                self._tenant, job_id=self._job_id, limit=_PAGE, cursor=self._cursor
            )
            for event in page.items[self._given :]:
                yield event
            if page.cursor is None:
                self._given = len(page.items)
                return
            self._cursor, self._given = page.cursor, 0
