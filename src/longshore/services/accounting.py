"""Accounting: reads an account, decides, commits; on conflict reads again.

What is decided is the same however often it is decided again (see ``core.budgets``), so an answer
that was lost costs another look and nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from longshore.core import budgets
from longshore.core.budgets import Account, Budget, Holding, day_account, job_account
from longshore.core.events.types import Usage
from longshore.core.rows import JobRow, TaskRow
from longshore.errors import VersionConflict
from longshore.ports.backend import Backend
from longshore.services.transitions import Transitions

logger = logging.getLogger(__name__)

Decide = Callable[[Account], Account | str | None]
"""The account as it is to be; a text: why not; None: it stays as it is."""


class Accounting:
    """What is reserved, spent and allowed in accounts."""

    def __init__(self, backend: Backend, transitions: Transitions) -> None:
        self._accounts = backend.accounts
        self._ledger = backend.ledger
        self._transitions = transitions

    async def read(self, tenant: str, name: str) -> Account:
        """An account as it is now; one that nobody has come to yet is empty."""
        found = await self._transitions.persistently(lambda: self._accounts.account(tenant, name))
        return found or Account(tenant=tenant, name=name)

    async def job_of(self, row: TaskRow) -> JobRow | None:
        """The job of a task, as it is now."""
        return await self._transitions.persistently(lambda: self._ledger.job(row.spec.job_id))

    async def change(self, tenant: str, name: str, decide: Decide) -> Account | str | None:
        """Have an account changed; what ``decide`` said last, and if it is an account: as stored.

        Raises:
            BackendUnavailable: the accounts could not be reached, after several tries.
        """
        change_id = self._transitions.new_id()
        while True:
            account = await self.read(tenant, name)
            decided = decide(account)
            if not isinstance(decided, Account):
                return decided
            written = replace(decided, version=account.version + 1, change_id=change_id)
            try:
                await self._commit(written)
            except VersionConflict:
                continue
            return written

    async def _commit(self, account: Account) -> None:
        await self._transitions.persistently(lambda: self._accounts.commit(account))

    async def reserve(
        self,
        row: TaskRow,
        name: str,
        limit: Budget,
        *,
        spent: Usage,
        reserved: Usage,
        wanted: Usage,
    ) -> str | None:
        """Reserve what an attempt wants; why there is nothing left of it, or None.

        Before it is refused, those are looked at who have reserved something: who died with it
        keeps nobody from it.

        Raises:
            Stale: somebody has closed what this attempt had.
        """

        def decide(account: Account) -> Account | str:
            return budgets.reserve(
                account,
                limit,
                task_id=row.id,
                attempt=row.attempt,
                spent=spent,
                reserved=reserved,
                wanted=wanted,
            )

        tenant = row.spec.tenant
        refused = await self.change(tenant, name, decide)
        if isinstance(refused, str) and await self._let_the_dead_go(tenant, name):
            refused = await self.change(tenant, name, decide)
        return refused if isinstance(refused, str) else None

    async def used_up(self, tenant: str, name: str, limit: Budget) -> str | None:
        """Why there is nothing left of a shared budget, or None; the dead keep nobody from it."""
        why = budgets.used_up(await self.read(tenant, name), limit)
        if why is not None and await self._let_the_dead_go(tenant, name):
            why = budgets.used_up(await self.read(tenant, name), limit)
        return why

    async def _let_the_dead_go(self, tenant: str, name: str) -> bool:
        """Close what attempts that are over have left open; whether there was any."""
        account = await self.read(tenant, name)
        ids = [one.task_id for one in account.holdings]
        rows = await self._transitions.persistently(lambda: self._ledger.tasks(ids))
        holders = {(row.id, row.attempt) for row in rows if row.lease is not None}
        dead = [one for one in account.holdings if (one.task_id, one.attempt) not in holders]
        for one in dead:
            await self._close(tenant, name, one)
            logger.warning("reservation.leaked", extra={"account": name, "task_id": one.task_id})
        return bool(dead)

    async def _close(self, tenant: str, name: str, held: Holding) -> None:
        await self.change(
            tenant,
            name,
            lambda account: budgets.close(account, task_id=held.task_id, attempt=held.attempt),
        )

    async def settle(self, row: TaskRow, name: str, *, spent: Usage, reserved: Usage) -> None:
        """Tell what an attempt has spent, and what it still has on its way."""
        await self.change(
            row.spec.tenant,
            name,
            lambda account: budgets.settle(
                account, task_id=row.id, attempt=row.attempt, spent=spent, reserved=reserved
            ),
        )

    async def close(self, row: TaskRow, name: str, *, spent: Usage | None = None) -> None:
        """An attempt is over: nothing more comes from it."""
        await self.change(
            row.spec.tenant,
            name,
            lambda account: budgets.close(
                account, task_id=row.id, attempt=row.attempt, spent=spent
            ),
        )

    async def forget(self, row: TaskRow, *moments: datetime) -> None:
        """Somebody has ended the lease of an attempt that says nothing more.

        Args:
            moments: Of the days in which it may have spent something.
        """
        for name in dict.fromkeys((job_account(row.spec.job_id), *map(day_account, moments))):
            await self.close(row, name)
