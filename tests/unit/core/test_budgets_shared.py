"""However many spend from one account at once, repeat themselves and die."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.budgets import (
    Budget,
    Reservation,
    SharedBudget,
    StaleReservation,
    close,
    reserve,
    settle,
    total_tokens,
)
from longshore.core.events.types import Usage

EMPTY = SharedBudget(tenant="acme", name="job/one")


@dataclass
class Spender:
    """An attempt that does not see the others, and what it last reported."""

    task_id: str
    attempt: int
    spent: int = 0  # tokens, by all its answers
    reserved: int = 0
    reported: int = 0
    closed: bool = False  # by itself, or by the process that found it dead
    ended: bool = False  # it was refused, or is dead

    @property
    def name(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "attempt": self.attempt}

    @property
    def reservation(self) -> Reservation:
        return Reservation(**self.name, spent=tokens(self.spent))


ANSWER = 10  # the most that one comes to
LIMIT = Budget(tokens=30)
ACTIONS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["ask", "ask", "ask", "answer", "answer", "close", "die", "reap"]),
    st.integers(1, ANSWER),
    st.booleans(),
)


def tokens(amount: int) -> Usage:
    return Usage(input_tokens=amount)


def _request(shared: SharedBudget, spender: Spender, amount: int) -> SharedBudget:
    if spender.ended or spender.reserved:
        return shared
    try:
        answer = reserve(shared, LIMIT, spender.reservation, tokens(amount))
    except StaleReservation:
        spender.ended = True
        return shared
    if isinstance(answer, SharedBudget):
        spender.reserved, spender.reported = amount, spender.spent
        return answer
    return shared


def _apply_action(shared: SharedBudget, spender: Spender, action: str, amount: int) -> SharedBudget:
    match action:
        case "ask":
            return _request(shared, spender, amount)
        case "answer" if spender.reserved and not spender.ended:
            spender.spent, spender.reserved = spender.spent + amount, 0
            after = settle(shared, spender.reservation)
            if after is not None:
                spender.reported = spender.spent
        case "close" if not spender.ended:
            after = close(shared, **spender.name, spent=tokens(spender.spent))
            if after is not None:
                spender.reported = spender.spent
            spender.ended, spender.reserved, spender.closed = True, 0, True
        case "die":
            spender.ended = True
            return shared
        case "reap" if spender.ended:
            after = close(shared, **spender.name)
            spender.closed, spender.reserved = True, 0
        case _:
            return shared
    return shared if after is None else after


@given(st.lists(ACTIONS, min_size=20, max_size=60))
def test_however_many_spend_at_once_and_die_each_answer_is_counted_once(
    actions: list[tuple[int, str, int, bool]],
) -> None:
    spenders = [Spender(task_id=f"t{number}", attempt=1) for number in range(4)]
    account = EMPTY
    for number, action, amount, repeated in actions:
        item = spenders[number]
        account = _apply_action(account, item, action, amount)
        if repeated and action == "ask" and item.reserved and not item.ended:
            # Its answer was lost: the same is decided again.
            again = reserve(account, LIMIT, item.reservation, tokens(item.reserved))
            if isinstance(again, SharedBudget):
                assert again.spent_and_reserved == account.spent_and_reserved
        elif repeated:
            account = _apply_action(account, item, action, 0)

        assert total_tokens(account.spent) == sum(item.reported for item in spenders)
        on_the_way = sum(item.reserved for item in spenders if not item.closed)
        assert total_tokens(account.spent_and_reserved) == total_tokens(account.spent) + on_the_way
        assert total_tokens(account.spent) < 30 + ANSWER * len(spenders)
        names = [(item.task_id, item.attempt) for item in account.reservations]
        assert len(set(names)) == len(names)
