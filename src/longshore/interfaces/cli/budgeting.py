"""The bodies of ``budget show`` and ``budget add``."""

from __future__ import annotations

from longshore.core.budgets import MOST, Budget
from longshore.errors import UsageError
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
from longshore.interfaces.cli.exits import say
from longshore.interfaces.cli.naming import Named
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table
from longshore.interfaces.cli.submitting import fresh_id

TODAY = "today"
_PARTS = ("limit", "added", "spent", "reserved")
_UNITS = (("usd", "dollars"), ("tokens", "tokens"), ("minutes", "minutes"))


async def show(here: Here, text: str) -> None:
    """Show a budget and what is spent of it."""
    async with desk_for(here) as desk:
        named = await _meant(desk, text)
        standing = await desk.budget(named)
        if here.json:
            print_json(standing)
        else:
            _print(_title(named), standing)


async def add(here: Here, text: str, more: Budget, *, request_id: str | None) -> None:
    """Allow more to be spent."""
    if not more:
        message = "nothing is added: say --usd, --tokens or --minutes"
        raise UsageError(message)
    for name, amount in (("usd", more.usd), ("tokens", more.tokens), ("minutes", more.minutes)):
        if amount is not None and amount > MOST:
            message = f"--{name}: {MOST:,} at most"
            raise UsageError(message)
    async with desk_for(here) as desk:
        named = await _meant(desk, text)
        standing = await desk.add_budget(named, more, request_id=request_id or fresh_id())
        if here.json:
            print_json(standing)
            return
        print(f"{_title(named)}: {more} more")
        _print(None, standing)
        _tell_if_too_little(standing)
        await _tell_if_it_rests(desk, named)


def _tell_if_too_little(standing: Document) -> None:
    """What goes on is parked again at once if more is spent than may be."""
    for unit, name in _UNITS:
        limit, spent = standing["limit"][unit], standing["spent"][unit]
        if limit is not None and spent >= limit:
            amounts = f"{_shown('spent', unit, spent)} of {_shown('limit', unit, limit)}"
            say(f"longshore: it is still used up: {amounts} {name}; add more")


async def _tell_if_it_rests(desk: Desk, named: Named | None) -> None:
    """More for a task does not help one that rests for want of its job's or the day's budget."""
    if named is None or named.task_id is None:
        return
    parked = (await desk.task(named.task_id))["parked"]
    if parked is not None:
        remedy = f"`longshore why {named.task_id}` says what would help"
        say(f"longshore: the task is still parked, {parked['reason']}; {remedy}")


async def _meant(desk: Desk, text: str) -> Named | None:
    return None if text == TODAY else await desk.find(text)


def _title(named: Named | None) -> str:
    return TODAY if named is None else named.task_id or named.job_id


def _print(title: str | None, standing: Document) -> None:
    if title is not None:
        print(title)
    parts = [part for part in _PARTS if part != "added" or any(standing[part].values())]
    columns = [Column(""), *(Column(part.upper(), right=True) for part in parts)]
    rows = [
        [name, *(_shown(part, unit, standing[part][unit]) for part in parts)]
        for unit, name in _UNITS
    ]
    print_table(columns, rows)


def _shown(part: str, unit: str, amount: float | None) -> str:
    if amount is None:
        return "no limit" if part == "limit" else ""
    return {"usd": f"{amount:,.4f}", "tokens": f"{amount:,.0f}"}.get(unit, f"{amount:,.1f}")
