"""An account in which every field has a value of its own, to see that a store keeps each."""

from __future__ import annotations

from longshore.core.budgets import Allowance, Budget, Reservation, SharedBudget
from longshore.core.events.types import Usage

_BEYOND_64_BITS = 2**64 + 1


def full_budget() -> SharedBudget:
    """An account with everything, as its first commit writes it."""
    return SharedBudget(
        tenant="acme «Füße»",
        name="job/job-full",
        version=1,
        change_id="change-⚓",
        allowance=_allowance(),
        closed_usage=_usage(1),
        reservations=(
            Reservation(task_id="job-full_a", attempt=7, spent=_usage(2), reserved=_usage(3)),
            # One task may have two: the second has come before the first was closed.
            Reservation(task_id="job-full_a", attempt=8, spent=Usage(), reserved=_usage(4)),
            Reservation(task_id="job-full_«ü»", attempt=1, spent=_usage(5), reserved=Usage()),
        ),
    )


def _allowance() -> Allowance:
    added = Budget(usd=0.7 + 0.1, tokens=_BEYOND_64_BITS, minutes=1 / 3)
    return Allowance(added=added, requests=("request-2", "request-1", ""))


def _usage(number: int) -> Usage:
    # 0.1 + 0.2 has digits that a store which rounds would lose.
    return Usage(
        input_tokens=2**53 + number,
        output_tokens=10 + number,
        cache_read_tokens=_BEYOND_64_BITS + number,
        turns=20 + number,
        cost_usd=number * (0.1 + 0.2),
        seconds=number * (0.7 + 0.1),
    )
