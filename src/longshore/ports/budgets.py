"""Accounts: what several tasks spend from together, changed by compare-and-swap only."""

from __future__ import annotations

from typing import Protocol

from longshore.core.budgets import SharedBudget


class Budgets(Protocol):
    """The store of accounts. It knows nothing of budgets: it reads, and it commits decisions."""

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        """The tenant's account of that name, or None if it was never committed.

        Consistent: it sees every commit that was answered before the read began, by any process.
        """
        ...

    async def commit(self, budget: SharedBudget) -> None:
        """Write the account, whose ``version`` is one above that of the account it was made from.

        An account whose ``change_id`` is the stored one's already has been committed before (its
        answer was lost): that is success, and nothing is written again. What was answered is on
        disk.

        Raises:
            VersionConflict: the stored account is not at the version before; nothing was written.
            OutcomeUnknown: it may or may not have happened; commit the same account again.
            BackendUnavailable: it did not happen; worth another try.
        """
        ...
