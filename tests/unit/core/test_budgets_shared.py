"""However many spend from one account at once, repeat themselves and die."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from longshore.core.budgets import (
    Account,
    Budget,
    Stale,
    close,
    reserve,
    settle,
    tokens_of,
)
from longshore.core.events.types import Usage

NOTHING = Usage()
EMPTY = Account(tenant="acme", name="job/one")


@dataclass
class Spender:
    """An attempt that does not know what others do, and what it has told the account last."""

    task_id: str
    attempt: int
    spent: int = 0  # tokens, by all its answers
    reserved: int = 0
    told: int = 0
    closed: bool = False  # by itself, or by whoever found it dead
    over: bool = False  # it has been told, or is dead

    @property
    def name(self) -> dict[str, Any]:
        return {"task_id": self.task_id, "attempt": self.attempt}


ANSWER = 10  # the most that one comes to
LIMIT = Budget(tokens=30)
ACTIONS = st.tuples(
    st.integers(0, 3),
    st.sampled_from(["ask", "ask", "ask", "answer", "answer", "close", "die", "bury"]),
    st.integers(1, ANSWER),
    st.booleans(),
)


def tokens(amount: int) -> Usage:
    return Usage(input_tokens=amount)


def _asks(account: Account, one: Spender, amount: int) -> Account:
    if one.over or one.reserved:
        return account
    asked = {"spent": tokens(one.spent), "reserved": NOTHING, "wanted": tokens(amount)}
    try:
        answer = reserve(account, LIMIT, **one.name, **asked)
    except Stale:
        one.over = True
        return account
    if isinstance(answer, Account):
        one.reserved, one.told = amount, one.spent
        return answer
    return account


def _acts(account: Account, one: Spender, action: str, amount: int) -> Account:
    match action:
        case "ask":
            return _asks(account, one, amount)
        case "answer" if one.reserved and not one.over:
            one.spent, one.reserved = one.spent + amount, 0
            after = settle(account, **one.name, spent=tokens(one.spent), reserved=NOTHING)
            if after is not None:
                one.told = one.spent
        case "close" if not one.over:
            after = close(account, **one.name, spent=tokens(one.spent))
            if after is not None:
                one.told = one.spent
            one.over, one.reserved, one.closed = True, 0, True
        case "die":
            one.over = True
            return account
        case "bury" if one.over:
            after = close(account, **one.name)
            one.closed, one.reserved = True, 0
        case _:
            return account
    return account if after is None else after


@given(st.lists(ACTIONS, min_size=20, max_size=60))
def test_however_many_spend_at_once_and_die_each_answer_is_counted_once(
    actions: list[tuple[int, str, int, bool]],
) -> None:
    spenders = [Spender(task_id=f"t{number}", attempt=1) for number in range(4)]
    account = EMPTY
    for number, action, amount, repeated in actions:
        one = spenders[number]
        account = _acts(account, one, action, amount)
        if repeated and action == "ask" and one.reserved and not one.over:
            # Its answer was lost: the same is decided again.
            wanted = {"reserved": NOTHING, "wanted": tokens(one.reserved)}
            again = reserve(account, LIMIT, **one.name, spent=tokens(one.spent), **wanted)
            assert isinstance(again, str) or again.taken == account.taken
        elif repeated:
            account = _acts(account, one, action, 0)

        assert tokens_of(account.spent) == sum(one.told for one in spenders)
        on_the_way = sum(one.reserved for one in spenders if not one.closed)
        assert tokens_of(account.taken) == tokens_of(account.spent) + on_the_way
        assert tokens_of(account.spent) < 30 + ANSWER * len(spenders)
        names = [(one.task_id, one.attempt) for one in account.holdings]
        assert len(set(names)) == len(names)
