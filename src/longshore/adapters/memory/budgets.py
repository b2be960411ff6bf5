"""Accounts in memory."""

from __future__ import annotations

from longshore.core.budgets import SharedBudget
from longshore.errors import VersionConflict


class MemoryBudgets:
    """See ``ports.accounts.Budgets``."""

    def __init__(self) -> None:
        self._budgets: dict[tuple[str, str], SharedBudget] = {}

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        return self._budgets.get((tenant, name))

    async def commit(self, budget: SharedBudget) -> None:
        there = self._budgets.get((budget.tenant, budget.name))
        if there is not None and there.change_id == budget.change_id:
            return
        expected = budget.version - 1
        if expected != (there.version if there else 0):
            raise VersionConflict(budget.name, expected)
        self._budgets[budget.tenant, budget.name] = budget
