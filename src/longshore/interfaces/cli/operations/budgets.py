"""The bodies of ``budget show`` and ``budget add``."""

from __future__ import annotations

from longshore.core.budgets import MAX_AMOUNT, Budget
from longshore.errors import UsageError
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.entity_refs import EntityRef
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.operations.submit import new_request_id
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render.screen import Column, print_json, print_table

TODAY = "today"
_COLUMNS = ("limit", "added", "spent", "reserved")
_UNITS = (("usd", "dollars"), ("tokens", "tokens"), ("minutes", "minutes"))


async def show(options: GlobalOptions, text: str) -> None:
    """Show a budget and what is spent of it."""
    async with open_client(options) as desk:
        named = await _resolve(desk, text)
        standing = await desk.budget(named)
        if options.json:
            print_json(standing)
        else:
            _print_status(_title(named), standing)


async def add(options: GlobalOptions, text: str, more: Budget, *, request_id: str | None) -> None:
    """Allow more to be spent."""
    if not more:
        message = "nothing is added: say --usd, --tokens or --minutes"
        raise UsageError(message)
    for name, amount in (("usd", more.usd), ("tokens", more.tokens), ("minutes", more.minutes)):
        if amount is not None and amount > MAX_AMOUNT:
            message = f"--{name}: {MAX_AMOUNT:,} at most"
            raise UsageError(message)
    async with open_client(options) as desk:
        named = await _resolve(desk, text)
        standing = await desk.add_budget(named, more, request_id=request_id or new_request_id())
        if options.json:
            print_json(standing)
            return
        print(f"{_title(named)}: {more} more")
        _print_status(None, standing)
        _warn_if_exhausted(standing)
        await _warn_if_parked(desk, named)


def _warn_if_exhausted(status: Document) -> None:
    """What goes on is parked again at once if more is spent than may be."""
    for unit, name in _UNITS:
        limit, spent = status["limit"][unit], status["spent"][unit]
        if limit is not None and spent >= limit:
            amounts = (
                f"{_format_amount('spent', unit, spent)} of {_format_amount('limit', unit, limit)}"
            )
            print_stderr(f"longshore: it is still used up: {amounts} {name}; add more")


async def _warn_if_parked(client: ApiClient, ref: EntityRef | None) -> None:
    """More for a task does not help one that rests for want of its job's or the day's budget."""
    if ref is None or ref.task_id is None:
        return
    parked = (await client.task(ref.task_id))["parked"]
    if parked is not None:
        remedy = f"`longshore why {ref.task_id}` says what would help"
        print_stderr(f"longshore: the task is still parked, {parked['reason']}; {remedy}")


async def _resolve(client: ApiClient, text: str) -> EntityRef | None:
    return None if text == TODAY else await client.resolve(text)


def _title(ref: EntityRef | None) -> str:
    return TODAY if ref is None else ref.task_id or ref.job_id


def _print_status(title: str | None, status: Document) -> None:
    if title is not None:
        print(title)
    parts = [part for part in _COLUMNS if part != "added" or any(status[part].values())]
    columns = [Column(""), *(Column(part.upper(), right=True) for part in parts)]
    rows = [
        [name, *(_format_amount(part, unit, status[part][unit]) for part in parts)]
        for unit, name in _UNITS
    ]
    print_table(columns, rows)


def _format_amount(part: str, unit: str, amount: float | None) -> str:
    if amount is None:
        return "no limit" if part == "limit" else ""
    return {"usd": f"{amount:,.4f}", "tokens": f"{amount:,.0f}"}.get(unit, f"{amount:,.1f}")
