"""The contract of the ``Accounts``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import pytest

from longshore.core.budgets import (
    NO_BUDGET,
    Account,
    Allowance,
    Holding,
    day_account,
    job_account,
    reserve,
    settle,
)
from longshore.core.events.types import Usage
from longshore.errors import VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.contracts.full_accounts import full_account
from longshore.testing.contracts.samples import left_at_default
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    at_once,
    clause,
)

TENANT = "acme"
NAME = job_account("job-one")
Change = Callable[[Account], Account | str | None]


class AccountsContract(PortContract):
    """What holds for every store of accounts."""

    @clause
    async def test_an_account_that_was_never_committed_is_none(self, backend: Backend) -> None:
        await backend.accounts.commit(_new(name="job/other"))

        assert await backend.accounts.account(TENANT, NAME) is None

    @clause
    async def test_every_field_of_an_account_is_kept(self, backend: Backend) -> None:
        account = full_account()
        assert account.allowance is not None
        parts = (account, account.allowance, account.allowance.added, account.closed)
        assert [name for part in parts for name in left_at_default(part)] == []

        await backend.accounts.commit(account)

        kept = await backend.accounts.account(account.tenant, account.name)
        for field in fields(account):
            assert getattr(kept, field.name) == getattr(account, field.name), field.name

    @clause
    async def test_every_field_of_an_account_can_be_taken_back(self, backend: Backend) -> None:
        full = full_account()
        await backend.accounts.commit(full)
        bare = Account(tenant=full.tenant, name=full.name, version=2, change_id="bare")

        await backend.accounts.commit(bare)

        assert await backend.accounts.account(full.tenant, full.name) == bare

    @clause
    async def test_a_budget_that_adds_nothing_of_something_is_kept_so(
        self, backend: Backend
    ) -> None:
        account = replace(_new(), allowance=Allowance(added=NO_BUDGET, requests=()))

        await backend.accounts.commit(account)

        assert await backend.accounts.account(TENANT, NAME) == account

    @clause
    async def test_an_account_in_which_many_have_something_open_is_kept(
        self, backend: Backend
    ) -> None:
        account = replace(_new(), holdings=tuple(_holding(f"t{n}") for n in range(1_000)))

        await backend.accounts.commit(account)

        assert await backend.accounts.account(TENANT, NAME) == account

    @clause
    async def test_each_commit_is_read_when_it_was_answered(self, backend: Backend) -> None:
        account = await _committed(backend, _new())
        for number in range(self.rounds):
            account = await _committed(backend, _next(account, f"t{number}"))

            assert await backend.accounts.account(TENANT, NAME) == account

    @pytest.mark.parametrize("version", [-1, 0, 2, 3])
    @clause
    async def test_an_account_that_is_not_stored_begins_with_version_one(
        self, backend: Backend, version: int
    ) -> None:
        with pytest.raises(VersionConflict) as refused:
            await backend.accounts.commit(replace(_new(), version=version))

        assert (refused.value.row_id, refused.value.expected) == (NAME, version - 1)
        assert await backend.accounts.account(TENANT, NAME) is None

    @pytest.mark.parametrize("version", [0, 1, 2, 4])
    @clause
    async def test_a_commit_from_another_version_is_a_conflict_and_writes_nothing(
        self, backend: Backend, version: int
    ) -> None:
        stored = await _committed(backend, _new())
        stored = await _committed(backend, _next(stored))

        with pytest.raises(VersionConflict) as refused:
            await backend.accounts.commit(replace(_next(stored, "late"), version=version))

        assert (refused.value.row_id, refused.value.expected) == (NAME, version - 1)
        assert await backend.accounts.account(TENANT, NAME) == stored
        await backend.accounts.commit(_next(stored))

    @clause
    async def test_the_same_commit_again_is_success(self, backend: Backend) -> None:
        account = _new()
        for number in range(3):
            for _ in range(3):
                await backend.accounts.commit(account)

            assert await backend.accounts.account(TENANT, NAME) == account
            account = _next(account, f"t{number}")

    @clause
    async def test_what_was_committed_under_a_change_id_is_not_written_again(
        self, backend: Backend
    ) -> None:
        first = await _committed(backend, _new())
        for version in (1, 2, 3):
            again = replace(_next(first, "again"), change_id=first.change_id, version=version)

            await backend.accounts.commit(again)

            assert await backend.accounts.account(TENANT, NAME) == first

    @clause
    async def test_a_change_that_others_have_followed_is_a_conflict(self, backend: Backend) -> None:
        first = await _committed(backend, _new())
        second = await _committed(backend, _next(first))
        third = await _committed(backend, _next(second))

        for earlier in (first, second):
            with pytest.raises(VersionConflict):
                await backend.accounts.commit(earlier)

        assert await backend.accounts.account(TENANT, NAME) == third

    @clause
    async def test_of_many_who_begin_one_account_exactly_one_wins(self, backend: Backend) -> None:
        for number in range(self.rounds):
            name = job_account(f"job-{number}")
            accounts = [_new(f"c{caller}", name=name) for caller in range(CALLERS)]

            await _exactly_one_wins(backend, accounts)

    @clause
    async def test_of_many_who_change_one_version_exactly_one_wins(self, backend: Backend) -> None:
        stored = await _committed(backend, _new())
        for number in range(self.rounds):
            stored = await _exactly_one_wins(
                backend, [_next(stored, f"{number}-{caller}") for caller in range(CALLERS)]
            )

    @clause
    async def test_of_two_at_once_one_wins_and_the_other_is_told_of_the_conflict(
        self, backend: Backend
    ) -> None:
        stored = await _committed(backend, _new())
        for number in range(self.rounds):
            stored = await _exactly_one_wins(
                backend, [_next(stored, f"{number}-{caller}") for caller in range(2)]
            )

    @clause
    async def test_one_change_that_is_committed_by_many_at_once_is_success_for_all(
        self, backend: Backend
    ) -> None:
        account = _new()
        for number in range(self.rounds // 5):
            answers = await at_once(backend.accounts.commit(account) for _ in range(CALLERS))

            assert answers == [None] * CALLERS
            assert await backend.accounts.account(TENANT, NAME) == account
            account = _next(account, f"t{number}")

    @clause
    async def test_what_many_reserve_and_settle_at_once_adds_up(self, backend: Backend) -> None:
        await asyncio.gather(*(_spends(backend, f"t{caller}", 3) for caller in range(4)))

        account = await backend.accounts.account(TENANT, NAME)

        assert account is not None
        assert account.version == 4 * 3 * 2
        assert account.spent == account.taken == Usage(turns=4 * 3, cost_usd=4 * 3.0)

    @clause
    async def test_tenants_do_not_meet(self, backend: Backend) -> None:
        ours = await _committed(backend, _new("ours"))
        assert await backend.accounts.account("evil", NAME) is None
        theirs = await _committed(backend, replace(_new("theirs"), tenant="evil"))

        ours = await _committed(backend, _next(ours))

        assert await backend.accounts.account(TENANT, NAME) == ours
        assert await backend.accounts.account("evil", NAME) == theirs

    @clause
    async def test_a_change_of_another_tenant_is_not_taken_for_an_own_one(
        self, backend: Backend
    ) -> None:
        await _committed(backend, _new("same"))
        theirs = await _committed(backend, replace(_new("same"), tenant="evil"))

        assert await backend.accounts.account("evil", NAME) == theirs

    @clause
    async def test_whatever_they_are_called_no_two_accounts_meet(self, backend: Backend) -> None:
        names = (
            *(day_account(START), "day/2030-01-08", job_account("job-rwb7x265bewqn65qv67v")),
            *("job/a", "job/A", "job/a ", " job/a", "job/", "job", "a", "%", "_", "job/%", "job/_"),
            *("job/a#b", "job/a%23b", "job/a/b", "job/'a'", 'job/"a"', "job/«ü»", "job/⚓"),
            "x" * 200,
        )
        places = [(TENANT, name) for name in names]
        places += [("acme#job", "a"), ("acme", "job#a"), ("acme/job", "a"), ("ACME", "job/a")]
        written = [
            await _committed(backend, replace(_new(str(number), name=name), tenant=tenant))
            for number, (tenant, name) in enumerate(places)
        ]

        assert [await backend.accounts.account(*place) for place in places] == written


class AccountsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_commit_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            account = await _committed(first, full_account())
            for number in range(self.rounds // 5):
                writer, reader = (first, second) if number % 2 else (second, first)
                account = await _committed(writer, _next(account, f"t{number}"))

                assert await reader.accounts.account(account.tenant, account.name) == account

        async with open_backend() as again:
            assert await again.accounts.account(account.tenant, account.name) == account

    @clause
    async def test_a_commit_that_another_instance_has_made_before_is_success(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            account = await _committed(first, _new())

            await second.accounts.commit(account)
            await second.accounts.commit(_next(account))

            with pytest.raises(VersionConflict):
                await first.accounts.commit(_next(account, "other"))

    @clause
    async def test_of_two_instances_that_change_one_version_exactly_one_wins(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            stored = await _committed(first, _new())
            for number in range(self.rounds // 5):
                changes = [_next(stored, f"{number}-{caller}") for caller in range(2)]
                answers = await at_once(
                    backend.accounts.commit(change)
                    for backend, change in zip((first, second), changes, strict=True)
                )

                stored = _the_winner(changes, answers)
                for backend in (first, second):
                    assert await backend.accounts.account(TENANT, NAME) == stored


def _new(change_id: str = "first", *, name: str = NAME) -> Account:
    holdings = (_holding(change_id),)
    return Account(tenant=TENANT, name=name, version=1, change_id=change_id, holdings=holdings)


def _next(account: Account, task_id: str = "t") -> Account:
    """Somebody else comes, and who was there is closed."""
    version = account.version + 1
    return replace(
        account,
        version=version,
        change_id=f"{version} {task_id}",
        closed=account.spent,
        holdings=(_holding(task_id),),
    )


def _holding(task_id: str) -> Holding:
    spent = Usage(input_tokens=1_000, turns=1, cost_usd=0.1)
    return Holding(task_id=task_id, attempt=1, spent=spent, reserved=Usage(cost_usd=0.2))


async def _committed(backend: Backend, account: Account) -> Account:
    await backend.accounts.commit(account)
    return account


async def _exactly_one_wins(backend: Backend, changes: list[Account]) -> Account:
    answers = await at_once(backend.accounts.commit(change) for change in changes)

    winner = _the_winner(changes, answers)
    assert await backend.accounts.account(winner.tenant, winner.name) == winner
    return winner


def _the_winner(changes: list[Account], answers: list[BaseException | None]) -> Account:
    (winner,) = [change for change, told in zip(changes, answers, strict=True) if told is None]
    refused = [told for told in answers if isinstance(told, VersionConflict)]
    assert len(refused) == len(changes) - 1, answers
    return winner


async def _spends(backend: Backend, task_id: str, answers: int) -> None:
    """As services do: read, decide, commit, and on conflict read again."""
    wanted = Usage(turns=1, cost_usd=5.0)
    for number in range(answers):
        before, after = (Usage(turns=n, cost_usd=float(n)) for n in (number, number + 1))
        none = Usage()
        reserving = partial(reserve, limit=NO_BUDGET, spent=before, reserved=none, wanted=wanted)
        settling = partial(settle, spent=after, reserved=none)
        for decide in (reserving, settling):
            change_id = f"{task_id} {number} {decide.func.__name__}"
            await _changed(backend, change_id, partial(decide, task_id=task_id, attempt=1))


async def _changed(backend: Backend, change_id: str, decide: Change) -> None:
    while True:
        stored = await backend.accounts.account(TENANT, NAME) or Account(tenant=TENANT, name=NAME)
        decided = decide(stored)
        assert isinstance(decided, Account)
        version = stored.version + 1
        try:
            await backend.accounts.commit(replace(decided, version=version, change_id=change_id))
        except VersionConflict:
            continue
        return
