"""Accounts with concurrent reservations: none counts twice, and none of a dead attempt blocks."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.core.budgets import (
    Budget,
    Exhausted,
    Reservation,
    SharedBudget,
    StaleReservation,
    day_budget_name,
    job_budget_name,
)
from longshore.core.events.types import Usage
from longshore.core.tasks.rows import TaskRow
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.agent_spending import agent_harness, day_budget, job_budget, submit, usd
from tests.unit.services.harness import (
    BACKENDS,
    TENANT,
    ServiceHarness,
    job_id,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort

LIMIT = Budget(usd=1.0)
NOTHING = Usage()


async def reserve(
    harness: ServiceHarness,
    row: TaskRow,
    requested: float,
    *,
    spent: float = 0.0,
    reserved: float = 0.0,
) -> Exhausted | None:
    own = Reservation(task_id=row.id, attempt=row.attempt, spent=usd(spent), reserved=usd(reserved))
    name = job_budget_name(row.spec.job_id)
    return await harness.reservations.reserve(TENANT, name, LIMIT, own, usd(requested))


async def settle(
    harness: ServiceHarness, row: TaskRow, spent: float, reserved: float = 0.0
) -> None:
    own = Reservation(task_id=row.id, attempt=row.attempt, spent=usd(spent), reserved=usd(reserved))
    await harness.reservations.settle(TENANT, job_budget_name(row.spec.job_id), own)


async def claimed(harness: ServiceHarness, *keys: str) -> list[TaskRow]:
    """Agents at work on one job."""
    await submit(harness, *keys, budget=1.0)
    return [await harness.claim(task_id(key)) for key in keys]


@scenario
async def test_a_shared_budget_that_was_never_used_is_empty(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)

        assert await harness.reservations.read(TENANT, "job/none") == SharedBudget(
            tenant=TENANT, name="job/none"
        )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_concurrent_reservations_count_once_each(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = await agent_harness(backend), ServiceHarness(backend)
        keys = [f"t{number}" for number in range(8)]
        rows = await claimed(harness, *keys)

        async def spends(process: ServiceHarness, row: TaskRow) -> str | None:
            refused = await reserve(process, row, 0.125)
            if refused is None:
                await settle(process, row, 0.125)
            await process.reservations.close(row, job_budget_name(job_id()))
            return refused

        spending = [spends(harness if n % 2 else other, row) for n, row in enumerate(rows)]
        refused = await harness.advance_until_done(_run_all(spending))

        granted = [why for why in refused if why is None]
        account = await job_budget(harness)
        assert account.spent.cost_usd == 0.125 * len(granted)
        assert account.reservations == ()


async def _run_all(calls: list[Any]) -> list[str | None]:
    return await asyncio.gather(*calls)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("after_write", [False, True], ids=["never arrived", "answer lost"])
@scenario
async def test_a_commit_with_a_lost_answer_is_made_once(
    kind: str, after_write: bool, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        (row,) = await claimed(harness, "a")
        error = OutcomeUnknown("gone") if after_write else BackendUnavailable("down")
        accounts = FlakyPort(backend.budgets, "commit", error, times=2, after_write=after_write)
        flaky = harness.with_ports(budgets=accounts)

        assert await harness.advance_until_done(reserve(flaky, row, 0.5)) is None
        await harness.advance_until_done(settle(flaky, row, 0.25))

        assert accounts.failures == 2
        account = await job_budget(harness)
        assert (account.version, account.spent_and_reserved) == (2, usd(0.25))


@scenario
async def test_an_answer_that_was_lost_before_others_came_is_not_counted_again(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        first, second = await claimed(harness, "a", "b")

        async def other() -> None:
            assert await reserve(harness, second, 0.25) is None

        lost = FlakyPort(backend.budgets, "commit", OutcomeUnknown("gone"), after_write=True)
        # The second commit comes after that of another attempt.
        accounts = InterposedPort(lost, "commit", before=other, at=2)

        assert (
            await harness.advance_until_done(
                reserve(harness.with_ports(budgets=accounts), first, 0.5)
            )
            is None
        )

        assert (await job_budget(harness)).spent_and_reserved == usd(0.75)


@scenario
async def test_accounts_that_stay_out_of_reach_are_given_up(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        (row,) = await claimed(harness, "a")
        accounts = FlakyPort(backend.budgets, "get", times=None)

        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(
                reserve(harness.with_ports(budgets=accounts), row, 0.5)
            )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_reservations_of_dead_attempts_do_not_limit_others(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        dead, waits = await claimed(harness, "a", "b")
        assert await reserve(harness, dead, 0.5) is None
        await settle(harness, dead, 0.25, reserved=0.75)
        refusal = await reserve(harness, waits, 0.5)
        assert str(refusal) == "$1.00 of $1.00 is spent or reserved"

        await harness.end_lease("a")

        assert await reserve(harness, waits, 0.5) is None
        account = await job_budget(harness)
        assert (account.closed_usage, account.spent_and_reserved) == (usd(0.25), usd(0.75))
        assert [item.task_id for item in account.reservations] == [waits.id]


@scenario
async def test_the_reservation_of_a_dead_attempt_is_released_although_the_task_has_a_new_lease(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        first, waits = await claimed(harness, "a", "b")
        assert await reserve(harness, first, 1.0) is None
        again = await harness.claim((await harness.end_lease("a")).id)

        # The lease is another attempt's: the first one's reservation is released.
        assert await reserve(harness, waits, 0.5) is None
        assert await reserve(harness, again, 0.5) is None
        assert (await job_budget(harness)).spent_and_reserved == usd(1.0)
        with pytest.raises(StaleReservation):
            await reserve(harness, first, 0.1)


@scenario
async def test_a_live_reservation_is_retained_and_a_refused_request_reserves_nothing(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        alive, waits = await claimed(harness, "a", "b")
        assert await reserve(harness, alive, 1.0) is None
        before = await job_budget(harness)

        assert await reserve(harness, waits, 0.5) is not None

        assert await job_budget(harness) == before
        await settle(harness, alive, 0.5)
        assert await reserve(harness, waits, 0.5) is None


@scenario
async def test_a_task_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        existing, waits = await claimed(harness, "a", "b")
        spec = replace(existing.spec, id=f"{existing.spec.job_id}_gone", key="gone")
        gone = replace(existing, spec=spec)
        assert await reserve(harness, gone, 1.0) is None

        assert await reserve(harness, waits, 0.5) is None
        assert (await job_budget(harness)).spent_and_reserved == usd(0.5)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_that_is_forgotten_is_closed_wherever_it_may_have_spent(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        (row,) = await claimed(harness, "a")
        yesterday = harness.clock.now()
        harness.clock.advance(harness.clock.now().replace(day=8, hour=1) - harness.clock.now())
        today = harness.clock.now()
        names = [job_budget_name(job_id()), day_budget_name(yesterday), day_budget_name(today)]
        for name in names:
            own = Reservation(task_id=row.id, attempt=row.attempt)
            assert await harness.reservations.reserve(TENANT, name, LIMIT, own, usd(0.5)) is None

        lost = replace(row, usage=usd(0.5), started_at=yesterday)
        await harness.reservations.close_lost_attempt(lost)
        await harness.reservations.close_lost_attempt(lost)

        for name in names:
            account = await harness.reservations.read(TENANT, name)
            assert (account.reservations, account.spent, account.version) == ((), NOTHING, 2)
        assert (await day_budget(harness)).name == names[2]
