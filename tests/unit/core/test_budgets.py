"""Budgets: what is left of one, and accounts that many spend from at once."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from longshore.core.budgets import (
    MAX_AMOUNT,
    NO_BUDGET,
    Allowance,
    Budget,
    Exhausted,
    Reservation,
    SharedBudget,
    StaleReservation,
    add_allowance,
    close,
    day_budget_name,
    exhaustion,
    job_budget_name,
    next_day_start,
    read_budget,
    reserve,
    settle,
    shared_exhaustion,
    total_tokens,
    with_allowance,
)
from longshore.core.events.types import Usage

NOTHING = Usage()
EMPTY = SharedBudget(tenant="acme", name="job/one")
ONE_DOLLAR = Budget(usd=1.0)


def usd(amount: float) -> Usage:
    return Usage(cost_usd=amount)


def reserved_in(
    shared: SharedBudget, task_id: str = "a", attempt: int = 1, **fields: Any
) -> SharedBudget | Exhausted:
    requested = fields.pop("requested", usd(0.25))
    own = Reservation(task_id=task_id, attempt=attempt, **fields)
    return reserve(shared, ONE_DOLLAR, own, requested)


def settled_in(shared: SharedBudget, **own: Any) -> SharedBudget | None:
    return settle(shared, Reservation(**own))


def granted(
    shared: SharedBudget, task_id: str = "a", attempt: int = 1, **fields: Any
) -> SharedBudget:
    answer = reserved_in(shared, task_id, attempt, **fields)
    assert isinstance(answer, SharedBudget), answer
    return answer


class TestBudget:
    def test_a_budget_that_limits_nothing_is_none(self) -> None:
        assert not NO_BUDGET
        assert all([Budget(usd=0.0), Budget(tokens=1), Budget(minutes=1.0)])

    @pytest.mark.parametrize(
        ("budget", "text"),
        [
            (NO_BUDGET, "nothing"),
            (Budget(usd=1234.5), "$1,234.50"),
            (Budget(tokens=1_000_000), "1,000,000 tokens"),
            (Budget(minutes=2.5), "2.5 minutes"),
            (Budget(usd=1.0, tokens=2, minutes=3.0), "$1.00, 2 tokens, 3 minutes"),
        ],
    )
    def test_it_says_what_it_is(self, budget: Budget, text: str) -> None:
        assert str(budget) == text

    def test_more_is_added_to_what_is_limited_and_what_is_not_stays_so(self) -> None:
        more = Budget(usd=1.0, tokens=10, minutes=5.0)

        assert Budget(usd=2.0, tokens=1, minutes=1.0).raised_by(more) == Budget(
            usd=3.0, tokens=11, minutes=6.0
        )
        assert NO_BUDGET.raised_by(more) == NO_BUDGET
        assert more.raised_by(NO_BUDGET) == more

    def test_two_additions_are_one(self) -> None:
        assert Budget(usd=1.0, tokens=2) + Budget(usd=0.5, minutes=3.0) == Budget(
            usd=1.5, tokens=2, minutes=3.0
        )

    def test_what_is_added_to_no_limit_is_named(self) -> None:
        everything = Budget(usd=1.0, tokens=1, minutes=1.0)

        assert NO_BUDGET.unlimited_units(everything) == ["dollars", "tokens", "minutes"]
        assert Budget(tokens=5).unlimited_units(Budget(usd=1.0, tokens=1)) == ["dollars"]
        assert everything.unlimited_units(everything) == []


class TestReading:
    @pytest.mark.parametrize(
        ("document", "budget"),
        [
            (2, Budget(usd=2.0)),
            (0.5, Budget(usd=0.5)),
            ({"usd": 1}, Budget(usd=1.0)),
            ({"tokens": 5, "minutes": 1}, Budget(tokens=5, minutes=1.0)),
            ({"tokens": MAX_AMOUNT}, Budget(tokens=MAX_AMOUNT)),
        ],
    )
    def test_dollars_alone_or_some_of_three_are_a_budget(
        self, document: Any, budget: Budget
    ) -> None:
        read = read_budget(document)

        assert read == budget
        assert isinstance(read.usd, float | None)
        assert isinstance(read.minutes, float | None)

    @pytest.mark.parametrize(
        "document",
        [
            *(None, True, "1", [], {}, 0, -1, float("nan"), float("inf"), MAX_AMOUNT + 1),
            *({"euro": 1}, {"usd": "1"}, {"usd": True}, {"tokens": 1.5}, {"tokens": None}),
            *({"minutes": 0}, {"usd": 1, "tokens": -1}),
        ],
        ids=repr,
    )
    def test_anything_else_is_not(self, document: Any) -> None:
        with pytest.raises(ValueError, match="each above 0"):
            read_budget(document)


class TestAllowance:
    def test_additions_add_up_and_each_request_counts_once(self) -> None:
        first = add_allowance(None, Budget(usd=1.0), "r1")
        assert first == Allowance(added=Budget(usd=1.0), requests=("r1",))
        second = add_allowance(first, Budget(usd=2.0, tokens=5), "r2")
        assert second == Allowance(added=Budget(usd=3.0, tokens=5), requests=("r1", "r2"))

        assert add_allowance(second, Budget(usd=1.0), "r1") is None

    def test_only_the_last_requests_are_remembered(self) -> None:
        allowance: Allowance | None = None
        for number in range(40):
            allowance = add_allowance(allowance, Budget(tokens=1), f"r{number}")

        assert allowance is not None
        assert allowance.added == Budget(tokens=40)
        assert allowance.requests == tuple(f"r{number}" for number in range(24, 40))

    def test_a_budget_is_raised_by_what_was_added(self) -> None:
        assert with_allowance(ONE_DOLLAR, None) == ONE_DOLLAR
        assert with_allowance(ONE_DOLLAR, Allowance(added=Budget(usd=0.5), requests=())) == Budget(
            usd=1.5
        )


class TestExhausted:
    SPENT = Usage(
        input_tokens=100, output_tokens=20, cache_read_tokens=3, cost_usd=1.5, seconds=90.0
    )

    def test_all_tokens_count_those_from_a_cache_too(self) -> None:
        assert total_tokens(self.SPENT) == 123

    @pytest.mark.parametrize(
        ("budget", "why"),
        [
            (NO_BUDGET, None),
            (Budget(usd=1.51, tokens=124, minutes=1.51), None),
            (Budget(usd=1.5), "$1.50 of $1.50 is spent"),
            (Budget(usd=1.0, tokens=1), "$1.50 of $1.00 is spent"),
            (Budget(tokens=123), "123 of 123 tokens are used"),
            (Budget(minutes=1.5), "1.5 of 1.5 minutes are used"),
        ],
    )
    def test_a_budget_is_used_up_as_soon_as_nothing_is_left_of_a_part_of_it(
        self, budget: Budget, why: str | None
    ) -> None:
        exhausted = exhaustion(budget, self.SPENT)

        assert (None if exhausted is None else str(exhausted)) == why


class TestNames:
    def test_each_job_and_each_day_has_an_account(self) -> None:
        east = timezone(timedelta(hours=10))

        assert job_budget_name("job-1") == "job/job-1"
        assert day_budget_name(datetime(2026, 3, 1, 9, tzinfo=east)) == "day/2026-02-28"

    def test_a_day_ends_at_midnight_utc(self) -> None:
        last = datetime(2026, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

        assert next_day_start(last) == datetime(2027, 1, 1, tzinfo=UTC)
        assert next_day_start(next_day_start(last)) == datetime(2027, 1, 2, tzinfo=UTC)
        assert day_budget_name(next_day_start(last)) == "day/2027-01-01"


class TestReserving:
    def test_what_one_has_reserved_is_gone_for_the_others(self) -> None:
        account = granted(EMPTY, "a", requested=usd(1.0))

        assert (account.spent, account.spent_and_reserved) == (NOTHING, usd(1.0))
        assert str(reserved_in(account, "b")) == "$1.00 of $1.00 is spent or reserved"

    def test_what_is_spent_is_not_called_reserved(self) -> None:
        settled = settled_in(
            granted(EMPTY, "a"), task_id="a", attempt=1, spent=usd(1.0), reserved=NOTHING
        )
        assert settled is not None

        assert str(reserved_in(settled, "b")) == "$1.00 of $1.00 is spent"
        assert str(shared_exhaustion(settled, ONE_DOLLAR)) == "$1.00 of $1.00 is spent"
        assert shared_exhaustion(settled, Budget(usd=1.5)) is None

    def test_a_reservation_is_granted_while_anything_is_left(self) -> None:
        account = granted(EMPTY, "a", requested=usd(0.75))

        assert granted(account, "b", requested=usd(5.0)).spent_and_reserved == usd(5.75)

    def test_who_asks_for_several_at_once_is_not_granted_more_than_there_is(self) -> None:
        account = granted(EMPTY, requested=usd(1.0))

        again = reserved_in(account, reserved=usd(1.0), requested=usd(0.5))

        assert str(again) == "$1.00 of $1.00 is spent or reserved"

    def test_asking_again_for_the_same_takes_it_once(self) -> None:
        once = granted(EMPTY, requested=usd(0.9))

        assert granted(once, requested=usd(0.9)) == once

    def test_usage_reported_with_a_reservation_is_counted(self) -> None:
        account = granted(granted(EMPTY), spent=usd(0.25), reserved=usd(0.125), requested=usd(0.5))

        assert account.spent == usd(0.25)
        assert account.reservations == (
            Reservation(task_id="a", attempt=1, spent=usd(0.25), reserved=usd(0.625)),
        )

    def test_a_refusal_changes_nothing_and_more_that_is_allowed_ends_it(self) -> None:
        account = granted(EMPTY, "a", requested=usd(1.0))
        more = replace(account, allowance=Allowance(added=Budget(usd=0.5), requests=("r",)))

        assert isinstance(reserved_in(account, "b"), Exhausted)
        assert isinstance(reserved_in(more, "b"), SharedBudget)

    def test_an_earlier_attempt_of_the_task_is_closed_with_its_reported_usage(self) -> None:
        settled = settled_in(
            granted(EMPTY, "a", requested=usd(0.5)),
            task_id="a",
            attempt=1,
            spent=usd(0.25),
            reserved=usd(0.5),
        )
        assert settled is not None

        account = granted(settled, "a", 2, requested=usd(0.125))

        assert (account.closed_usage, account.spent_and_reserved) == (usd(0.25), usd(0.375))
        assert [item.attempt for item in account.reservations] == [2]

    def test_an_attempt_whose_reservation_was_closed_is_refused(self) -> None:
        closed = close(granted(EMPTY), task_id="a", attempt=1)
        assert closed is not None

        with pytest.raises(StaleReservation):
            reserved_in(closed, spent=usd(0.25))

    def test_an_attempt_with_a_later_attempt_is_refused(self) -> None:
        account = granted(EMPTY, "a", 2)

        with pytest.raises(StaleReservation):
            reserved_in(account, "a", 1)


class TestSettling:
    def test_what_was_reserved_is_free_and_what_it_came_to_is_spent(self) -> None:
        both = granted(granted(EMPTY, "a"), "b")

        account = settled_in(both, task_id="a", attempt=1, spent=usd(0.1), reserved=NOTHING)

        assert account is not None
        assert (account.spent, account.spent_and_reserved) == (usd(0.1), usd(0.35))

    def test_usage_that_is_reported_twice_is_counted_once(self) -> None:
        once = settled_in(granted(EMPTY), task_id="a", attempt=1, spent=usd(0.1), reserved=NOTHING)
        assert once is not None

        assert settled_in(once, task_id="a", attempt=1, spent=usd(0.1), reserved=NOTHING) is None

    def test_usage_of_an_attempt_without_a_reservation_changes_nothing(self) -> None:
        account = granted(EMPTY, "a", 2)

        for task_id, attempt in (("a", 1), ("b", 2)):
            settled = settled_in(
                account, task_id=task_id, attempt=attempt, spent=usd(9.0), reserved=NOTHING
            )
            assert settled is None


class TestClosing:
    def test_the_last_reported_usage_of_a_closed_attempt_stays_spent(self) -> None:
        account = granted(granted(EMPTY, "a"), "b")
        settled = settled_in(account, task_id="a", attempt=1, spent=usd(0.1), reserved=usd(0.2))
        assert settled is not None

        silent = close(settled, task_id="a", attempt=1)
        last_word = close(settled, task_id="a", attempt=1, spent=usd(0.3))

        assert silent is not None
        assert last_word is not None
        assert (silent.closed_usage, last_word.closed_usage) == (usd(0.1), usd(0.3))
        assert [item.task_id for item in silent.reservations] == ["b"]

    def test_closed_twice_it_is_counted_once(self) -> None:
        once = close(granted(EMPTY), task_id="a", attempt=1, spent=usd(0.3))
        assert once is not None

        assert close(once, task_id="a", attempt=1, spent=usd(0.3)) is None
