"""Accounts in SQLite: one row each, written if it is still the one that was decided from."""

from __future__ import annotations

import apsw

from longshore.adapters.shared import codec
from longshore.adapters.sqlite.database import Database
from longshore.adapters.sqlite.statements import rows
from longshore.core.budgets import Account
from longshore.errors import VersionConflict

_INSERT = (
    "INSERT INTO accounts (version, change_id, body, tenant, name) VALUES (?,?,?,?,?)"
    " ON CONFLICT DO NOTHING"
)
_UPDATE = (
    "UPDATE accounts SET version = ?, change_id = ?2, body = ?"
    " WHERE tenant = ? AND name = ? AND version = ? AND change_id <> ?2"
)
_CHANGE_ID = "SELECT change_id FROM accounts WHERE tenant = ? AND name = ?"


class SqliteAccounts:
    """See ``ports.accounts.Accounts``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def account(self, tenant: str, name: str) -> Account | None:
        found = self._database.point(
            "SELECT body FROM accounts WHERE tenant = ? AND name = ?", (tenant, name)
        )
        return codec.account_from_json(found[0][0]) if found else None

    async def commit(self, account: Account) -> None:
        expected = account.version - 1
        place = (account.tenant, account.name)
        sql = _UPDATE if expected else _INSERT
        values = (account.version, account.change_id, codec.to_json(account), *place)

        def work(connection: apsw.Connection) -> None:
            connection.execute(sql, (*values, expected) if expected else values)
            if connection.changes():
                return
            there = rows(connection, _CHANGE_ID, place)
            if not there or there[0][0] != account.change_id:
                raise VersionConflict(account.name, expected)

        # Promised: what is asked of a model after this is paid for, whatever the power does.
        await self._database.write(work)
