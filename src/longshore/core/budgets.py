"""Budgets: how much may be spent on a step, a task, a job or in a tenant's day, and what has been.

What one task spends alone stands in its own row. What several spend from together, a job's budget
or a day's, is an ``Account``: an attempt reserves in it before it asks a model anything, and
settles when the answer is there. A reservation is granted as long as anything is left, so that
nobody is kept from the last of it; many at once can therefore go over a budget by one answer each,
and by no more, because what one has reserved is gone for the others.

An account knows of each attempt that has anything open in it what *all* its answers came to, not
what the last one did: told twice it is counted once, and what is told under an attempt that others
have closed changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar

from longshore.core.events.types import Usage
from longshore.core.valuing import row, value

_DAY = timedelta(days=1)
_CENT = 0.01
_Number = TypeVar("_Number", int, float)


class Scope(StrEnum):
    """What a budget is for."""

    STEP = "step"
    TASK = "task"
    JOB = "job"
    DAY = "day"


RESERVED = " or reserved"
"""How a reason ends if not all of it is spent."""
OWN_SCOPES = frozenset({Scope.STEP, Scope.TASK})
"""Of one task alone; what is added to the task is added to both."""


@value
class Budget:
    """What may be spent, or is added to it; None: that is not limited, or nothing is added."""

    usd: float | None = None
    tokens: int | None = None
    minutes: float | None = None

    def __bool__(self) -> bool:
        return (self.usd, self.tokens, self.minutes) != (None, None, None)

    def __str__(self) -> str:
        parts = (
            None if self.usd is None else _dollars(self.usd),
            None if self.tokens is None else f"{self.tokens:,} tokens",
            None if self.minutes is None else f"{self.minutes:,g} minutes",
        )
        return ", ".join(part for part in parts if part) or "nothing"

    def with_more(self, more: Budget) -> Budget:
        """What may be spent when more is allowed; what is not limited stays so."""
        return Budget(
            usd=None if self.usd is None else self.usd + (more.usd or 0.0),
            tokens=None if self.tokens is None else self.tokens + (more.tokens or 0),
            minutes=None if self.minutes is None else self.minutes + (more.minutes or 0.0),
        )

    def __add__(self, other: Budget) -> Budget:
        """Two additions as one."""
        return Budget(
            usd=_sum(self.usd, other.usd),
            tokens=_sum(self.tokens, other.tokens),
            minutes=_sum(self.minutes, other.minutes),
        )

    def unlimited_of(self, more: Budget) -> list[str]:
        """What is to be added and is not limited, so that adding to it would mean nothing."""
        pairs = (
            ("dollars", self.usd, more.usd),
            ("tokens", self.tokens, more.tokens),
            ("minutes", self.minutes, more.minutes),
        )
        return [name for name, limit, added in pairs if limit is None and added is not None]


NO_BUDGET = Budget()
MOST = 1_000_000_000
_EXPECTED = "expected dollars, or an object with some of usd, tokens and minutes, each above 0"


def read_budget(document: Any) -> Budget:
    """The budget that a document names: dollars, or ``{usd, tokens, minutes}``.

    Raises:
        ValueError: it names none.
    """
    if type(document) in (int, float):
        document = {"usd": document}
    if not isinstance(document, Mapping) or not document or document.keys() - _KINDS.keys():
        raise ValueError(_EXPECTED)
    for name, amount in document.items():
        if type(amount) not in _KINDS[name] or not 0 < amount <= MOST:
            message = f"{name}: {_EXPECTED}"
            raise ValueError(message)
    usd, minutes = document.get("usd"), document.get("minutes")
    return Budget(
        usd=None if usd is None else float(usd),
        tokens=document.get("tokens"),
        minutes=None if minutes is None else float(minutes),
    )


_KINDS: dict[str, tuple[type, ...]] = {
    "usd": (int, float),
    "tokens": (int,),
    "minutes": (int, float),
}
_REMEMBERED = 16


@value
class Allowance:
    """What operators have added to a budget, and by which requests, so that none counts twice."""

    added: Budget
    requests: tuple[str, ...]  # the last of them


def allowed_more(allowance: Allowance | None, more: Budget, request_id: str) -> Allowance | None:
    """What is allowed with an addition to it; None: that request has added already."""
    if allowance is None:
        return Allowance(added=more, requests=(request_id,))
    if request_id in allowance.requests:
        return None
    requests = (*allowance.requests, request_id)[-_REMEMBERED:]
    return Allowance(added=allowance.added + more, requests=requests)


def raised(budget: Budget, allowance: Allowance | None) -> Budget:
    """A budget with what operators have added to it."""
    return budget if allowance is None else budget.with_more(allowance.added)


def _sum(one: _Number | None, other: _Number | None) -> _Number | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _dollars(amount: float) -> str:
    """Two digits; four of what they would not show."""
    return f"${amount:,.2f}" if amount >= _CENT else f"${amount:.4f}"


def tokens_of(usage: Usage) -> int:
    """All that were read and written, those from a cache too."""
    return usage.input_tokens + usage.output_tokens + usage.cache_read_tokens


def exhausted(budget: Budget, spent: Usage) -> str | None:
    """What of a budget is used up, in words; None: something is left of everything."""
    if budget.usd is not None and spent.cost_usd >= budget.usd:
        return f"{_dollars(spent.cost_usd)} of {_dollars(budget.usd)} is spent"
    if budget.tokens is not None and tokens_of(spent) >= budget.tokens:
        return f"{tokens_of(spent):,} of {budget.tokens:,} tokens are used"
    if budget.minutes is not None and spent.seconds >= budget.minutes * 60:
        return f"{spent.seconds / 60:,.1f} of {budget.minutes:,g} minutes are used"
    return None


@value
class Holding:
    """What one attempt has open in an account."""

    task_id: str
    attempt: int
    spent: Usage  # by all its answers so far that are this account's
    reserved: Usage  # for those that have not come


@row
class Account:
    """What several tasks spend from together."""

    tenant: str
    name: str
    version: int = 0  # 0: it is not stored yet
    change_id: str = ""  # of the commit that made this version
    allowance: Allowance | None = None  # what operators have added to what is allowed without
    closed: Usage = Usage()  # by attempts that are over
    holdings: tuple[Holding, ...] = ()

    @property
    def spent(self) -> Usage:
        """By everybody."""
        return sum((one.spent for one in self.holdings), self.closed)

    @property
    def taken(self) -> Usage:
        """What is spent, and what is reserved."""
        return sum((one.reserved for one in self.holdings), self.spent)


class Stale(Exception):
    """Somebody else has closed what this attempt had in the account: it is over."""


def job_account(job_id: str) -> str:
    """The name of a job's account."""
    return f"job/{job_id}"


def day_account(at: datetime) -> str:
    """The name of the account of a day, which begins at midnight UTC."""
    return f"day/{at.astimezone(UTC):%Y-%m-%d}"


def day_after(at: datetime) -> datetime:
    """When the next day begins."""
    midnight = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + _DAY


def reserve(
    account: Account,
    limit: Budget,
    *,
    task_id: str,
    attempt: int,
    spent: Usage,
    reserved: Usage,
    wanted: Usage,
) -> Account | str:
    """The account with what an attempt wants to spend reserved in it; or why there is none left.

    Args:
        limit: What may be spent, without what operators have added.
        spent: By all answers of this attempt that are this account's; nothing, if this is the
            first time that it comes here.
        reserved: For answers of this attempt that are on their way: who asks for several at once
            does not go over a budget by each of them.
        wanted: What is asked for now.

    Raises:
        Stale: the attempt was here, and somebody has closed what it had.
    """
    held = _holding(account, task_id, attempt)
    if held is None and (spent != Usage() or _later(account, task_id, attempt)):
        raise Stale
    # An earlier attempt of the task is over, whoever has forgotten to say so.
    for one in account.holdings:
        if one.task_id == task_id and one.attempt < attempt:
            account = _without(account, one, one.spent)
    others = tuple(one for one in account.holdings if one != held)
    own = Holding(task_id=task_id, attempt=attempt, spent=spent, reserved=reserved)
    account = replace(account, holdings=(*others, own))
    if (why := used_up(account, limit)) is not None:
        return why
    return replace(account, holdings=(*others, replace(own, reserved=reserved + wanted)))


def used_up(account: Account, limit: Budget) -> str | None:
    """What of a shared budget is spent, or reserved for answers that are on their way."""
    whole = raised(limit, account.allowance)
    if (why := exhausted(whole, account.spent)) is not None:
        return why
    why = exhausted(whole, account.taken)
    return None if why is None else f"{why}{RESERVED}"


def settle(
    account: Account, *, task_id: str, attempt: int, spent: Usage, reserved: Usage
) -> Account | None:
    """The account as an answer has left it; None: nothing changes, or it is not this attempt's."""
    held = _holding(account, task_id, attempt)
    if held is None or (held.spent, held.reserved) == (spent, reserved):
        return None
    now = replace(held, spent=spent, reserved=reserved)
    return replace(account, holdings=tuple(now if one is held else one for one in account.holdings))


def close(
    account: Account, *, task_id: str, attempt: int, spent: Usage | None = None
) -> Account | None:
    """The account without what an attempt that is over had open; None: it had nothing.

    Args:
        spent: By all its answers; None: as far as it had told.
    """
    held = _holding(account, task_id, attempt)
    if held is None:
        return None
    return _without(account, held, held.spent if spent is None else spent)


def _without(account: Account, held: Holding, spent: Usage) -> Account:
    left = tuple(one for one in account.holdings if one is not held)
    return replace(account, closed=account.closed + spent, holdings=left)


def _holding(account: Account, task_id: str, attempt: int) -> Holding | None:
    for one in account.holdings:
        if (one.task_id, one.attempt) == (task_id, attempt):
            return one
    return None


def _later(account: Account, task_id: str, attempt: int) -> bool:
    return any(one.task_id == task_id and one.attempt > attempt for one in account.holdings)
