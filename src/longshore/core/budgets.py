"""Budgets: how much a step, a task, a job or a tenant's day may spend, and how much was spent.

What one task spends alone is in its own row. What several tasks spend together, a job's budget or
a day's, is a ``SharedBudget``: an attempt reserves an amount in it before it calls a model, and
settles the amount when the response has arrived. A reservation is granted while anything is left.
Concurrent attempts can therefore exceed a budget by one response each and by no more, because a
reserved amount is not available to others.

A shared budget stores, for each attempt with an open reservation, the total of all its responses
and not only the last one: a report that arrives twice counts once, and a report of an attempt
whose reservation was closed changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from longshore.core.events.types import Usage
from longshore.core.records import row, value

_DAY = timedelta(days=1)
_CENT = 0.01


class BudgetScope(StrEnum):
    """What a budget is for."""

    STEP = "step"
    TASK = "task"
    JOB = "job"
    DAY = "day"


TASK_SCOPES = frozenset({BudgetScope.STEP, BudgetScope.TASK})
"""Scopes of one task alone; an addition to the task's budget raises both."""


class BudgetUnit(StrEnum):
    """What a budget is counted in."""

    USD = "usd"
    TOKENS = "tokens"
    MINUTES = "minutes"


@value
class Budget:
    """An amount per unit: a limit, or an addition to one. None: unlimited, or nothing is added."""

    usd: float | None = None
    tokens: int | None = None
    minutes: float | None = None

    @property
    def amounts(self) -> dict[str, Any]:
        """The amounts that are not None, by their units."""
        amounts = ((unit.value, getattr(self, unit)) for unit in BudgetUnit)
        return {unit: amount for unit, amount in amounts if amount is not None}

    def __bool__(self) -> bool:
        return (self.usd, self.tokens, self.minutes) != (None, None, None)

    def __str__(self) -> str:
        parts = (
            None if self.usd is None else _format_usd(self.usd),
            None if self.tokens is None else f"{self.tokens:,} tokens",
            None if self.minutes is None else f"{self.minutes:,g} minutes",
        )
        return ", ".join(part for part in parts if part) or "nothing"

    def raised_by(self, amount: Budget) -> Budget:
        """Returns the limit raised by ``amount``; an unlimited unit stays unlimited."""
        more = amount.amounts
        return Budget(**{unit: limit + more.get(unit, 0) for unit, limit in self.amounts.items()})

    def __add__(self, other: Budget) -> Budget:
        """Returns the sum of two additions."""
        return Budget(**other.amounts | self.raised_by(other).amounts)

    def unlimited_units(self, amount: Budget) -> list[str]:
        """Returns the units of ``amount`` that this budget does not limit."""
        return [_UNIT_NAMES[unit] for unit in amount.amounts if unit not in self.amounts]


_UNIT_NAMES = {"usd": "dollars", "tokens": "tokens", "minutes": "minutes"}
NO_BUDGET = Budget()
MAX_AMOUNT = 1_000_000_000
_EXPECTED = "expected dollars, or an object with some of usd, tokens and minutes, each above 0"


def read_budget(document: Any) -> Budget:
    """Returns the budget in a document: dollars, or ``{usd, tokens, minutes}``.

    Raises:
        ValueError: the document is not a budget.
    """
    if type(document) in (int, float):
        document = {"usd": document}
    if not isinstance(document, Mapping) or not document or document.keys() - _AMOUNT_TYPES.keys():
        raise ValueError(_EXPECTED)
    for name, amount in document.items():
        if type(amount) not in _AMOUNT_TYPES[name] or not 0 < amount <= MAX_AMOUNT:
            raise ValueError(f"{name}: {_EXPECTED}")
    usd, minutes = document.get("usd"), document.get("minutes")
    return Budget(
        usd=None if usd is None else float(usd),
        tokens=document.get("tokens"),
        minutes=None if minutes is None else float(minutes),
    )


_AMOUNT_TYPES: dict[str, tuple[type, ...]] = {
    "usd": (int, float),
    "tokens": (int,),
    "minutes": (int, float),
}
_REMEMBERED_REQUESTS = 16


@value
class Allowance:
    """What operators added to a budget, and by which requests, so that no request counts twice."""

    added: Budget
    requests: tuple[str, ...]  # the most recent ones


def add_allowance(allowance: Allowance | None, amount: Budget, request_id: str) -> Allowance | None:
    """Returns the allowance with an addition; None if this request was already counted."""
    if allowance is None:
        return Allowance(added=amount, requests=(request_id,))
    if request_id in allowance.requests:
        return None
    requests = (*allowance.requests, request_id)[-_REMEMBERED_REQUESTS:]
    return Allowance(added=allowance.added + amount, requests=requests)


def with_allowance(budget: Budget, allowance: Allowance | None) -> Budget:
    """Returns a budget raised by what operators added to it."""
    return budget if allowance is None else budget.raised_by(allowance.added)


def _format_usd(amount: float) -> str:
    """Two decimals, or four for amounts below a cent."""
    return f"${amount:,.2f}" if amount >= _CENT else f"${amount:.4f}"


def total_tokens(usage: Usage) -> int:
    """Returns all tokens read and written, including those read from a cache."""
    return usage.input_tokens + usage.output_tokens + usage.cache_read_tokens


@value
class Exhausted:
    """A budget of which nothing is left."""

    unit: BudgetUnit
    used: float  # in the unit
    limit: float
    reserved: bool = False  # part of ``used`` is only reserved, for responses on their way

    def __str__(self) -> str:
        if self.unit is BudgetUnit.USD:
            text = f"{_format_usd(self.used)} of {_format_usd(self.limit)} is spent"
        elif self.unit is BudgetUnit.TOKENS:
            text = f"{self.used:,} of {self.limit:,} tokens are used"
        else:
            text = f"{self.used:,.1f} of {self.limit:,g} minutes are used"
        return f"{text} or reserved" if self.reserved else text


_USED: Mapping[str, Callable[[Usage], float]] = {
    BudgetUnit.USD: lambda usage: usage.cost_usd,
    BudgetUnit.TOKENS: total_tokens,
    BudgetUnit.MINUTES: lambda usage: usage.seconds / 60,
}


def exhaustion(
    budget: Budget, spent: Usage, spent_and_reserved: Usage | None = None
) -> Exhausted | None:
    """Returns the first unit of a budget that is used up; None if something is left of each."""
    for usage in filter(None, (spent, spent_and_reserved)):
        for unit, limit in budget.amounts.items():
            if (used := _USED[unit](usage)) >= limit:
                reserved = usage is not spent
                return Exhausted(unit=BudgetUnit(unit), used=used, limit=limit, reserved=reserved)
    return None


@value
class Reservation:
    """What one attempt has open in a shared budget."""

    task_id: str
    attempt: int
    spent: Usage = Usage()  # by its responses so far that count against this budget
    reserved: Usage = Usage()  # for responses that have not arrived


@row
class SharedBudget:
    """A budget that several tasks spend from."""

    tenant: str
    name: str
    version: int = 0  # 0: not stored yet
    change_id: str = ""  # of the commit that made this version
    allowance: Allowance | None = None  # what operators added
    closed_usage: Usage = Usage()  # of attempts that have ended
    reservations: tuple[Reservation, ...] = ()

    @property
    def spent(self) -> Usage:
        """By all attempts."""
        return sum((item.spent for item in self.reservations), self.closed_usage)

    @property
    def spent_and_reserved(self) -> Usage:
        """What is spent and what is reserved, in sum."""
        return sum((item.reserved for item in self.reservations), self.spent)


class StaleReservation(Exception):
    """Another process has closed this attempt's reservation: the attempt has ended."""


def job_budget_name(job_id: str) -> str:
    """Returns the name of a job's shared budget."""
    return f"job/{job_id}"


def day_budget_name(at: datetime) -> str:
    """Returns the name of a day's shared budget; a day begins at midnight UTC."""
    return f"day/{at.astimezone(UTC):%Y-%m-%d}"


def next_day_start(at: datetime) -> datetime:
    """Returns the moment at which the next day begins."""
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + _DAY


def reserve(
    shared: SharedBudget, limit: Budget, own: Reservation, requested: Usage
) -> SharedBudget | Exhausted:
    """Returns the budget with the requested amount reserved, or what of it is used up.

    Args:
        limit: What may be spent, without what operators added.
        own: What the attempt has spent and reserved so far, so that its concurrent requests do not
            each exceed the budget; nothing at its first request.

    Raises:
        StaleReservation: the attempt had a reservation, and another process has closed it.
    """
    current = _find_reservation(shared, own.task_id, own.attempt)
    attempts = [item.attempt for item in shared.reservations if item.task_id == own.task_id]
    if current is None and (own.spent != Usage() or max(attempts, default=0) > own.attempt):
        raise StaleReservation
    # An earlier attempt of the task has ended, even if its reservation was not closed.
    for item in shared.reservations:
        if item.task_id == own.task_id and item.attempt < own.attempt:
            shared = _without_reservation(shared, item, item.spent)
    others = tuple(item for item in shared.reservations if item != current)
    shared = replace(shared, reservations=(*others, own))
    if (exhausted := shared_exhaustion(shared, limit)) is not None:
        return exhausted
    granted = replace(own, reserved=own.reserved + requested)
    return replace(shared, reservations=(*others, granted))


def shared_exhaustion(shared: SharedBudget, limit: Budget) -> Exhausted | None:
    """Returns what of a shared budget is spent or reserved completely; None if anything is left."""
    whole = with_allowance(limit, shared.allowance)
    return exhaustion(whole, shared.spent, shared.spent_and_reserved)


def settle(shared: SharedBudget, own: Reservation) -> SharedBudget | None:
    """Returns the budget after a response; None if nothing changes or the attempt has no part."""
    current = _find_reservation(shared, own.task_id, own.attempt)
    if current in (None, own):
        return None
    reservations = tuple(own if item is current else item for item in shared.reservations)
    return replace(shared, reservations=reservations)


def close(
    shared: SharedBudget, *, task_id: str, attempt: int, spent: Usage | None = None
) -> SharedBudget | None:
    """Returns the budget without the reservation of an ended attempt; None if it had none.

    Args:
        spent: By all its responses; None: what it last reported.
    """
    own = _find_reservation(shared, task_id, attempt)
    if own is None:
        return None
    return _without_reservation(shared, own, own.spent if spent is None else spent)


def _without_reservation(
    shared: SharedBudget, reservation: Reservation, spent: Usage
) -> SharedBudget:
    left = tuple(item for item in shared.reservations if item is not reservation)
    return replace(shared, closed_usage=shared.closed_usage + spent, reservations=left)


def _find_reservation(shared: SharedBudget, task_id: str, attempt: int) -> Reservation | None:
    own = (
        item for item in shared.reservations if (item.task_id, item.attempt) == (task_id, attempt)
    )
    return next(own, None)
