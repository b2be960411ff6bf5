"""What lies until somebody sees to it: counts dead letters and parked tasks, tenant by tenant.

Each sort is looked for by itself, and what cannot be found out of one is left open: there is then
no pile of it, which is not the same as an empty one. Nobody is told that none is left because
something could not be read.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from longshore.core.dead_letters import DeadLetter, DeadMessage, of_message
from longshore.core.piles import (
    COUNTED_LIMIT,
    NOTHING_LIES,
    Pile,
    PileItem,
    dead_item,
    parked_item,
    pile_of,
)
from longshore.errors import BackendUnavailable
from longshore.ports.backend import Backend
from longshore.ports.ledger import ParkedTask
from longshore.services.alerting import Alerting
from longshore.services.edges import stepped_over
from longshore.services.reading import read_rows

logger = logging.getLogger(__name__)

_AT_ONCE = 500
_NO_MARGIN = timedelta(0)

Found = dict[str, Pile]
Look = Callable[[Collection[str] | None, Found], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lying:
    """The piles of each tenant; none where it could not be found out."""

    dead: Mapping[str, Pile]
    parked: Mapping[str, Pile]

    @property
    def tenants(self) -> set[str]:
        """Those of whom anything is known."""
        return {*self.dead, *self.parked}


class Piles:
    """Finds what lies. ``tenant`` is who looks after the queues; see ``HealthCheck``."""

    def __init__(self, *, backend: Backend, alerting: Alerting, tenant: str) -> None:
        self._backend = backend
        self._alerting = alerting
        self._tenant = tenant

    async def lying(self, tenants: Collection[str] | None = None) -> Lying:
        """What lies of these tenants, or of all, as far as can be found out; never fails."""
        return Lying(
            dead=await self._as_far_as_known("dead_letters", self._dead, tenants),
            parked=await self._as_far_as_known("parked", self._parked, tenants),
        )

    async def told_tenants(self) -> set[str]:
        """Those of whom people were told something, so that they can be told that it is over."""
        with stepped_over(logger, "health.told_tenants_unknown"):
            return await self._alerting.tenants()
        return set()

    async def _as_far_as_known(
        self, what: str, look: Look, tenants: Collection[str] | None
    ) -> Found:
        found: Found = {}
        try:
            with stepped_over(logger, f"health.{what}_unreadable"):
                await look(tenants, found)
        except BackendUnavailable as error:
            # The next check looks again. This one still has other things to look at.
            unavailable = f"health.{what}_unavailable"
            logger.warning(unavailable, extra={"error": str(error)})
        return found

    async def _dead(self, tenants: Collection[str] | None, found: Found) -> None:
        messages = await self._lost_messages()
        wanted = set(tenants or await self._tenants_with_dead(messages))
        for tenant in sorted(wanted):
            with stepped_over(logger, "health.dead_letters_unreadable", tenant=tenant):
                own = messages if tenant == self._tenant else []
                letters = [*await self._failed(tenant), *own]
                found[tenant] = pile_of(map(dead_item, letters), limit=COUNTED_LIMIT)

    async def _tenants_with_dead(self, messages: Sequence[DeadLetter]) -> set[str]:
        """Those who have some, and those who had when people were told."""
        found = await self.told_tenants()
        if messages:
            found.add(self._tenant)
        after = ""
        ledger = self._backend.ledger
        while page := await ledger.failed_tenants(limit=_AT_ONCE, after=after):
            found.update(page)
            after = page[-1]
        return found

    async def _failed(self, tenant: str) -> list[DeadLetter]:
        """Tasks that failed for good: the newest, and one more than are counted if there is."""
        rows = await self._backend.ledger.failed(tenant, limit=COUNTED_LIMIT + 1)
        return [
            DeadLetter(
                id=row.task_id, at=row.failed_at, queue=row.queue, category=row.category, reason=""
            )
            for row in rows
        ]

    async def _lost_messages(self) -> list[DeadLetter]:
        """Dead messages that lead to no task: the next sweep settles all others."""
        found = await self._backend.queue.dead_letters(None, limit=COUNTED_LIMIT + 1)
        messages = [
            DeadMessage(
                id=one.id,
                queue=one.queue,
                body=one.body,
                receives=one.receives,
                sent_at=one.sent_at,
            )
            for one in found
        ]
        named = {one.task_id for one in messages if isinstance(one.task_id, str)}
        read = await read_rows(self._backend.ledger, sorted(named))
        known = {row.id for row in read.rows}
        now = self._backend.clock.now()
        letters = [
            of_message(one, None, now=now, margin=_NO_MARGIN)
            for one in messages
            if one.task_id not in known
        ]
        return [letter for letter in letters if letter is not None]

    async def _parked(self, tenants: Collection[str] | None, found: Found) -> None:
        ids = [task.task_id for task in await self._all_parked()]
        read = await read_rows(self._backend.ledger, ids)
        items: dict[str, list[PileItem]] = defaultdict(list)
        for row in read.rows:
            item = parked_item(row)
            if item is not None and (tenants is None or row.spec.tenant in tenants):
                items[row.spec.tenant].append(item)
        for tenant, own in items.items():
            found[tenant] = pile_of(own, limit=COUNTED_LIMIT)
        if read.unread:
            return  # nobody knows whose they are, so of nobody that none is left
        for tenant in await self.told_tenants() if tenants is None else tenants:
            found.setdefault(tenant, NOTHING_LIES)

    async def _all_parked(self) -> list[ParkedTask]:
        """All of every tenant: those that never go on by themselves come last in the listing."""
        limit = _AT_ONCE
        while len(parked := await self._backend.ledger.parked(limit=limit)) >= limit:
            limit *= 2
        return parked
