"""Accounts in memory."""

from __future__ import annotations

from longshore.core.budgets import Account
from longshore.errors import VersionConflict


class MemoryAccounts:
    """See ``ports.accounts.Accounts``."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[str, str], Account] = {}

    async def account(self, tenant: str, name: str) -> Account | None:
        return self._accounts.get((tenant, name))

    async def commit(self, account: Account) -> None:
        there = self._accounts.get((account.tenant, account.name))
        if there is not None and there.change_id == account.change_id:
            return
        expected = account.version - 1
        if expected != (there.version if there else 0):
            raise VersionConflict(account.name, expected)
        self._accounts[account.tenant, account.name] = account
