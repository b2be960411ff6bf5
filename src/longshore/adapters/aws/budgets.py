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

from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.compression import compress_text, decompress_text
from longshore.adapters.aws.config_table import (
    ConfigTable,
    Item,
    kind_of,
    number_attribute,
    string_attribute,
)
from longshore.adapters.aws.names import Names
from longshore.adapters.shared import codec
from longshore.core.budgets import SharedBudget
from longshore.errors import VersionConflict

_SOLE_NAME = "."  # the name of what is alone of its kind
_STORE_LABEL = "the config table"


class DynamoBudgets:
    """See ``ports.accounts.Budgets``."""

    def __init__(self, aws: AwsClient, names: Names) -> None:
        self._config_table = ConfigTable(aws, names)

    async def get(self, tenant: str, name: str) -> SharedBudget | None:
        item = await self._config_table.get(_kind(tenant, name), _SOLE_NAME)
        return (
            codec.shared_budget_from_json(decompress_text(item["body"]["B"], _STORE_LABEL))
            if item
            else None
        )

    async def commit(self, budget: SharedBudget) -> None:
        expected = budget.version - 1
        values: Item = {
            ":version": number_attribute(budget.version),
            ":change": string_attribute(budget.change_id),
            ":body": {"B": compress_text(codec.to_json(budget))},
        }
        condition = "attribute_not_exists(#version)"
        if expected:
            condition = "#version = :expected AND #change <> :change"
            values[":expected"] = number_attribute(expected)
        there = await self._config_table.update(
            _kind(budget.tenant, budget.name),
            _SOLE_NAME,
            "SET #version = :version, #change = :change, #body = :body",
            condition=condition,
            values=values,
        )
        if there is not None and there.get("change") != string_attribute(budget.change_id):
            raise VersionConflict(budget.name, expected)


def _kind(tenant: str, name: str) -> str:
    return kind_of("budget", tenant, name)
