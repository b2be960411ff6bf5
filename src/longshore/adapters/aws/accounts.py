"""Accounts in DynamoDB: one item each, written by one call if it is at the version before.

Each account is a kind of its own, so that those of a tenant are spread over the table. It is packed
as rows are; beside it stand its version, which decides who may write, and the id of the change that
made it what it is.

===========  ========  ====================================================================
call         requests  units
===========  ========  ====================================================================
``account``  1         1 read, and 1 for each 4 KB more
``commit``   1         1 write, and 1 for each KB more: up to some 8 attempts that have
                       anything open in it are in the first, and some 10 in each more
===========  ========  ====================================================================

One that is refused costs a write, too. An item takes 1,000 units a second and 400 KB: so many
commits a second are made of one account at most, and some 4,000 attempts can have anything open in
it at once.

If the answer to a commit is lost it is made again. It is then refused by what it has written
itself, and DynamoDB hands out the item it was refused for, so that the change is known by its id.
If others have changed the account in between, that is a conflict although it was written: who reads
again and decides again must come to the same, as whoever spends does by telling sums.
"""

from __future__ import annotations

from longshore.adapters.aws.calls import Aws
from longshore.adapters.aws.house import House, Item, kind_of, number, text
from longshore.adapters.aws.names import Names
from longshore.adapters.aws.packing import packed, unpacked
from longshore.adapters.shared import codec
from longshore.core.budgets import Account
from longshore.errors import VersionConflict

_ITSELF = "."  # the name of what is alone of its kind
_WHERE = "the house's table"


class DynamoAccounts:
    """See ``ports.accounts.Accounts``."""

    def __init__(self, aws: Aws, names: Names) -> None:
        self._house = House(aws, names)

    async def account(self, tenant: str, name: str) -> Account | None:
        item = await self._house.get(_kind(tenant, name), _ITSELF)
        return codec.account_from_json(unpacked(item["body"]["B"], _WHERE)) if item else None

    async def commit(self, account: Account) -> None:
        expected = account.version - 1
        values: Item = {
            ":version": number(account.version),
            ":change": text(account.change_id),
            ":body": {"B": packed(codec.to_json(account))},
        }
        condition = "attribute_not_exists(#version)"
        if expected:
            condition = "#version = :expected AND #change <> :change"
            values[":expected"] = number(expected)
        there = await self._house.update(
            _kind(account.tenant, account.name),
            _ITSELF,
            "SET #version = :version, #change = :change, #body = :body",
            condition=condition,
            values=values,
        )
        if there is not None and there.get("change") != text(account.change_id):
            raise VersionConflict(account.name, expected)


def _kind(tenant: str, name: str) -> str:
    return kind_of("account", tenant, name)
