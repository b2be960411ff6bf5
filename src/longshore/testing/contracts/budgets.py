"""The contract of the ``Budgets``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import pytest

from longshore.core.budgets import (
    NO_BUDGET,
    Allowance,
    Exhausted,
    Reservation,
    SharedBudget,
    day_budget_name,
    job_budget_name,
    reserve,
    settle,
)
from longshore.core.events.types import Usage
from longshore.errors import VersionConflict
from longshore.ports.backend import Backend
from longshore.testing.contracts.samples import left_at_default
from longshore.testing.contracts.suite import (
    CALLERS,
    START,
    Opener,
    PortContract,
    clause,
    gather_all,
)
from longshore.testing.full_samples import full_budget

TENANT = "acme"
NAME = job_budget_name("job-one")
Change = Callable[[SharedBudget], SharedBudget | Exhausted | None]


class BudgetsContract(PortContract):
    """What holds for every store of accounts."""

    @clause
    async def test_a_budget_that_was_never_committed_is_none(self, backend: Backend) -> None:
        await backend.budgets.commit(_new(name="job/other"))

        assert await backend.budgets.get(TENANT, NAME) is None

    @clause
    async def test_every_field_of_a_budget_is_kept(self, backend: Backend) -> None:
        account = full_budget()
        assert account.allowance is not None
        parts = (account, account.allowance, account.allowance.added, account.closed_usage)
        assert [name for part in parts for name in left_at_default(part)] == []

        await backend.budgets.commit(account)

        stored = await backend.budgets.get(account.tenant, account.name)
        for field in fields(account):
            assert getattr(stored, field.name) == getattr(account, field.name), field.name

    @clause
    async def test_every_field_of_a_budget_can_be_cleared(self, backend: Backend) -> None:
        full = full_budget()
        await backend.budgets.commit(full)
        bare = SharedBudget(tenant=full.tenant, name=full.name, version=2, change_id="bare")

        await backend.budgets.commit(bare)

        assert await backend.budgets.get(full.tenant, full.name) == bare

    @clause
    async def test_a_budget_that_adds_nothing_of_something_is_kept_so(
        self, backend: Backend
    ) -> None:
        account = replace(_new(), allowance=Allowance(added=NO_BUDGET, requests=()))

        await backend.budgets.commit(account)

        assert await backend.budgets.get(TENANT, NAME) == account

    @clause
    async def test_a_budget_with_many_open_reservations_is_kept(self, backend: Backend) -> None:
        account = replace(_new(), reservations=tuple(_reservation(f"t{n}") for n in range(1_000)))

        await backend.budgets.commit(account)

        assert await backend.budgets.get(TENANT, NAME) == account

    @clause
    async def test_each_commit_is_read_when_it_was_answered(self, backend: Backend) -> None:
        account = await _committed(backend, _new())
        for number in range(self.rounds):
            account = await _committed(backend, _next(account, f"t{number}"))

            assert await backend.budgets.get(TENANT, NAME) == account

    @pytest.mark.parametrize("version", [-1, 0, 2, 3])
    @clause
    async def test_a_budget_that_is_not_stored_begins_with_version_one(
        self, backend: Backend, version: int
    ) -> None:
        with pytest.raises(VersionConflict) as refused:
            await backend.budgets.commit(replace(_new(), version=version))

        assert (refused.value.row_id, refused.value.expected) == (NAME, version - 1)
        assert await backend.budgets.get(TENANT, NAME) is None

    @pytest.mark.parametrize("version", [0, 1, 2, 4])
    @clause
    async def test_a_commit_from_another_version_is_a_conflict_and_writes_nothing(
        self, backend: Backend, version: int
    ) -> None:
        stored = await _committed(backend, _new())
        stored = await _committed(backend, _next(stored))

        with pytest.raises(VersionConflict) as refused:
            await backend.budgets.commit(replace(_next(stored, "late"), version=version))

        assert (refused.value.row_id, refused.value.expected) == (NAME, version - 1)
        assert await backend.budgets.get(TENANT, NAME) == stored
        await backend.budgets.commit(_next(stored))

    @clause
    async def test_the_same_commit_again_is_success(self, backend: Backend) -> None:
        account = _new()
        for number in range(3):
            for _ in range(3):
                await backend.budgets.commit(account)

            assert await backend.budgets.get(TENANT, NAME) == account
            account = _next(account, f"t{number}")

    @clause
    async def test_what_was_committed_under_a_change_id_is_not_written_again(
        self, backend: Backend
    ) -> None:
        first = await _committed(backend, _new())
        for version in (1, 2, 3):
            again = replace(_next(first, "again"), change_id=first.change_id, version=version)

            await backend.budgets.commit(again)

            assert await backend.budgets.get(TENANT, NAME) == first

    @clause
    async def test_a_change_that_others_have_followed_is_a_conflict(self, backend: Backend) -> None:
        first = await _committed(backend, _new())
        second = await _committed(backend, _next(first))
        third = await _committed(backend, _next(second))

        for earlier in (first, second):
            with pytest.raises(VersionConflict):
                await backend.budgets.commit(earlier)

        assert await backend.budgets.get(TENANT, NAME) == third

    @clause
    async def test_of_many_who_create_one_budget_exactly_one_wins(self, backend: Backend) -> None:
        for number in range(self.rounds):
            name = job_budget_name(f"job-{number}")
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
    async def test_of_two_at_once_one_wins_and_the_other_gets_a_conflict(
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
            answers = await gather_all(backend.budgets.commit(account) for _ in range(CALLERS))

            assert answers == [None] * CALLERS
            assert await backend.budgets.get(TENANT, NAME) == account
            account = _next(account, f"t{number}")

    @clause
    async def test_what_many_reserve_and_settle_at_once_adds_up(self, backend: Backend) -> None:
        await asyncio.gather(*(_spend(backend, f"t{caller}", 3) for caller in range(4)))

        account = await backend.budgets.get(TENANT, NAME)

        assert account is not None
        assert account.version == 4 * 3 * 2
        assert account.spent == account.spent_and_reserved == Usage(turns=4 * 3, cost_usd=4 * 3.0)

    @clause
    async def test_tenants_do_not_meet(self, backend: Backend) -> None:
        ours = await _committed(backend, _new("ours"))
        assert await backend.budgets.get("evil", NAME) is None
        theirs = await _committed(backend, replace(_new("theirs"), tenant="evil"))

        ours = await _committed(backend, _next(ours))

        assert await backend.budgets.get(TENANT, NAME) == ours
        assert await backend.budgets.get("evil", NAME) == theirs

    @clause
    async def test_a_change_of_another_tenant_is_not_taken_for_an_own_one(
        self, backend: Backend
    ) -> None:
        await _committed(backend, _new("same"))
        theirs = await _committed(backend, replace(_new("same"), tenant="evil"))

        assert await backend.budgets.get("evil", NAME) == theirs

    @clause
    async def test_no_two_budget_names_collide(self, backend: Backend) -> None:
        names = (
            *(
                day_budget_name(START),
                "day/2030-01-08",
                job_budget_name("job-rwb7x265bewqn65qv67v"),
            ),
            *("job/a", "job/A", "job/a ", " job/a", "job/", "job", "a", "%", "_", "job/%", "job/_"),
            *("job/a#b", "job/a%23b", "job/a/b", "job/'a'", 'job/"a"', "job/«ü»", "job/⚓"),
            "x" * 200,
        )
        keys = [(TENANT, name) for name in names]
        keys += [("acme#job", "a"), ("acme", "job#a"), ("acme/job", "a"), ("ACME", "job/a")]
        written = [
            await _committed(backend, replace(_new(str(number), name=name), tenant=tenant))
            for number, (tenant, name) in enumerate(keys)
        ]

        assert [await backend.budgets.get(*key) for key in keys] == written


class BudgetsSharedContract(PortContract):
    """What holds when several instances share the store."""

    @clause
    async def test_a_commit_is_seen_by_every_instance_and_after_a_restart(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            account = await _committed(first, full_budget())
            for number in range(self.rounds // 5):
                writer, reader = (first, second) if number % 2 else (second, first)
                account = await _committed(writer, _next(account, f"t{number}"))

                assert await reader.budgets.get(account.tenant, account.name) == account

        async with open_backend() as again:
            assert await again.budgets.get(account.tenant, account.name) == account

    @clause
    async def test_a_commit_that_another_instance_has_made_before_is_success(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            account = await _committed(first, _new())

            await second.budgets.commit(account)
            await second.budgets.commit(_next(account))

            with pytest.raises(VersionConflict):
                await first.budgets.commit(_next(account, "other"))

    @clause
    async def test_of_two_instances_that_change_one_version_exactly_one_wins(
        self, open_backend: Opener
    ) -> None:
        async with open_backend() as first, open_backend() as second:
            stored = await _committed(first, _new())
            for number in range(self.rounds // 5):
                changes = [_next(stored, f"{number}-{caller}") for caller in range(2)]
                answers = await gather_all(
                    backend.budgets.commit(change)
                    for backend, change in zip((first, second), changes, strict=True)
                )

                stored = _winner(changes, answers)
                for backend in (first, second):
                    assert await backend.budgets.get(TENANT, NAME) == stored


def _new(change_id: str = "first", *, name: str = NAME) -> SharedBudget:
    holdings = (_reservation(change_id),)
    return SharedBudget(
        tenant=TENANT, name=name, version=1, change_id=change_id, reservations=holdings
    )


def _next(budget: SharedBudget, task_id: str = "t") -> SharedBudget:
    """The budget after another task's reservation; the earlier one is closed."""
    version = budget.version + 1
    return replace(
        budget,
        version=version,
        change_id=f"{version} {task_id}",
        closed_usage=budget.spent,
        reservations=(_reservation(task_id),),
    )


def _reservation(task_id: str) -> Reservation:
    spent = Usage(input_tokens=1_000, turns=1, cost_usd=0.1)
    return Reservation(task_id=task_id, attempt=1, spent=spent, reserved=Usage(cost_usd=0.2))


async def _committed(backend: Backend, budget: SharedBudget) -> SharedBudget:
    await backend.budgets.commit(budget)
    return budget


async def _exactly_one_wins(backend: Backend, changes: list[SharedBudget]) -> SharedBudget:
    answers = await gather_all(backend.budgets.commit(change) for change in changes)

    winner = _winner(changes, answers)
    assert await backend.budgets.get(winner.tenant, winner.name) == winner
    return winner


def _winner(changes: list[SharedBudget], answers: list[BaseException | None]) -> SharedBudget:
    (winner,) = [change for change, error in zip(changes, answers, strict=True) if error is None]
    refused = [error for error in answers if isinstance(error, VersionConflict)]
    assert len(refused) == len(changes) - 1, answers
    return winner


async def _spend(backend: Backend, task_id: str, answers: int) -> None:
    """As services do: read, decide, commit, and on conflict read again."""
    estimate = Usage(turns=1, cost_usd=5.0)
    for number in range(answers):
        before, after = (
            Reservation(task_id=task_id, attempt=1, spent=Usage(turns=n, cost_usd=float(n)))
            for n in (number, number + 1)
        )
        reserving = partial(reserve, limit=NO_BUDGET, own=before, requested=estimate)
        for decide in (reserving, partial(settle, own=after)):
            change_id = f"{task_id} {number} {decide.func.__name__}"
            await _commit_change(backend, change_id, decide)


async def _commit_change(backend: Backend, change_id: str, decide: Change) -> None:
    while True:
        stored = await backend.budgets.get(TENANT, NAME) or SharedBudget(tenant=TENANT, name=NAME)
        decided = decide(stored)
        assert isinstance(decided, SharedBudget)
        version = stored.version + 1
        try:
            await backend.budgets.commit(replace(decided, version=version, change_id=change_id))
        except VersionConflict:
            continue
        return
