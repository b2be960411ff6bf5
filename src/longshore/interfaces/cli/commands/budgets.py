"""The commands for budgets: ``budget show``, ``budget add``."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated

from longshore.errors import UsageError
from longshore.interfaces.cli.client import ApiClient, client_command
from longshore.interfaces.cli.commands.shared import RequestId
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import argument, option
from longshore.interfaces.cli.render import screen

if TYPE_CHECKING:
    from longshore.services import documents as d

_Id = Annotated[str, argument("ID", "ID or unique prefix of a job or task, or 'today'.")]
_TODAY = "today"
_UNITS = {"usd": "dollars", "tokens": "tokens", "minutes": "minutes"}
_FORMATS = {"usd": ",.4f", "tokens": ",.0f", "minutes": ",.1f"}


@client_command(
    ("longshore budget show today", "limit and spending of today"),
    ("longshore budget show job-4f2", "of one job"),
)
async def show(client: ApiClient, id_: _Id) -> None:
    """Show the budget of a job, of a task or of today, and how much of it agents have spent.

    The budget of a task is set in its definition, of a job in the job file, of a day in the
    settings. Days begin at midnight UTC.
    """
    entity_id = await _resolve(client, id_)
    _print_status(client, entity_id or _TODAY, await client.app.get_budget(entity_id))


@client_command(
    ("longshore budget add job-4f2_review --usd 5", "a parked task continues"),
    ("longshore budget add today --tokens 1000000", "for all tasks of today"),
)
async def add(
    client: ApiClient,
    id_: _Id,
    *,
    usd: Annotated[float | None, option("N", "Dollars.", min=0.000001)] = None,
    tokens: Annotated[int | None, option("N", "Tokens.", min=1)] = None,
    minutes: Annotated[float | None, option("N", "Minutes.", min=0.001)] = None,
    request_id: RequestId = None,
) -> None:
    """Add to the budget of a job, of a task or of today.

    Tasks that were parked because the budget was used up continue in the same conversation.
    """
    from longshore.core.budgets import MAX_AMOUNT, Budget

    amounts = {"usd": usd, "tokens": tokens, "minutes": minutes}
    for unit, amount in amounts.items():
        if amount is not None and amount > MAX_AMOUNT:
            raise UsageError(f"--{unit}: {MAX_AMOUNT:,} at most")
    more = Budget(usd=usd, tokens=tokens, minutes=minutes)
    if not more:
        raise UsageError("nothing to add: use --usd, --tokens or --minutes")
    entity_id = await _resolve(client, id_)
    status = await client.app.add_budget(
        entity_id, more, request_id=request_id or secrets.token_hex(8)
    )
    _print_status(client, f"{entity_id or _TODAY}: {more} more", status)
    if client.options.json:
        return
    for unit, name in _UNITS.items():
        limit, spent = getattr(status.limit, unit), getattr(status.spent, unit)
        # A task that continues is parked again at once.
        if limit is not None and spent >= limit:
            shown = f"{spent:{_FORMATS[unit]}} of {limit:{_FORMATS[unit]}} {name}"
            print_stderr(f"longshore: the budget is still used up: {shown}; add more")
    if entity_id is not None and "_" in entity_id:
        # The budget of its job or of the day may be used up too.
        parked = (await client.app.get_task(entity_id)).parked
        if parked is not None:
            hint = f"`longshore why {entity_id}` explains how to continue"
            print_stderr(f"longshore: the task is still parked, {parked.reason}; {hint}")


async def _resolve(client: ApiClient, text: str) -> str | None:
    return None if text == _TODAY else (await client.resolve(text)).id


def _print_status(client: ApiClient, title: str, status: d.BudgetStatusDocument) -> None:
    client.options.print_answer(status, title)
    if client.options.json:
        return
    rows = []
    for unit, name in _UNITS.items():
        row = {"": name}
        for column in ("limit", "added", "spent", "reserved"):
            amount: float | None = getattr(getattr(status, column), unit)
            none = "no limit" if column == "limit" else ""
            row[column.upper()] = none if amount is None else f"{amount:{_FORMATS[unit]}}"
        rows.append(row)
    screen.print_table(rows)
