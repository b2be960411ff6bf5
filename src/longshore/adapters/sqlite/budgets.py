"""Accounts in SQLite: one row each, written if it is still the one that was decided from."""

from __future__ import annotations

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.statements import rows
from longshore.core.budgets import SharedBudget
from longshore.errors import VersionConflict

_INSERT = (
    "INSERT INTO budgets (version, change_id, body, tenant, name) VALUES (?,?,?,?,?)"
    " ON CONFLICT DO NOTHING"
)
_UPDATE = (
    "UPDATE budgets SET version = ?, change_id = ?2, body = ?"
    " WHERE tenant = ? AND name = ? AND version = ? AND change_id <> ?2"
)
_CHANGE_ID = "SELECT change_id FROM budgets WHERE tenant = ? AND name = ?"


class SqliteBudgets:
    """See ``ports.accounts.Budgets``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        found = self._database.point(
            "SELECT body FROM budgets WHERE tenant = ? AND name = ?", (tenant, name)
        )
        return codec.shared_budget_from_json(found[0][0]) if found else None

    async def commit(self, budget: SharedBudget) -> None:
        expected = budget.version - 1
        place = (budget.tenant, budget.name)
        sql = _UPDATE if expected else _INSERT
        values = (budget.version, budget.change_id, codec.to_json(budget), *place)

        def work(connection: apsw.Connection) -> None:
            connection.execute(sql, (*values, expected) if expected else values)
            if connection.changes():
                return
            there = rows(connection, _CHANGE_ID, place)
            if not there or there[0][0] != budget.change_id:
                raise VersionConflict(budget.name, expected)

        # Promised: what is asked of a model after this is paid for, whatever the power does.
        await self._database.write(work)
