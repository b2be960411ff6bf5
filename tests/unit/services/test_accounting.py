"""Accounts that many come to at once: nothing counts twice, and the dead keep nobody waiting."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.core.budgets import Account, Budget, Stale, day_account, job_account
from longshore.core.events.types import Usage
from longshore.core.rows import TaskRow
from longshore.errors import BackendUnavailable, OutcomeUnknown
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Interposed
from tests.unit.services.spending import account_of_day, account_of_job, staged, submit, usd
from tests.unit.services.stage import BACKENDS, TENANT, Stage, job_id, opened, scenario, task_id

LIMIT = Budget(usd=1.0)
NOTHING = Usage()


async def reserve(
    stage: Stage, row: TaskRow, wanted: float, *, spent: float = 0.0, reserved: float = 0.0
) -> str | None:
    return await stage.accounting.reserve(
        row,
        job_account(row.spec.job_id),
        LIMIT,
        spent=usd(spent),
        reserved=usd(reserved),
        wanted=usd(wanted),
    )


async def settle(stage: Stage, row: TaskRow, spent: float, reserved: float = 0.0) -> None:
    await stage.accounting.settle(
        row, job_account(row.spec.job_id), spent=usd(spent), reserved=usd(reserved)
    )


async def claimed(stage: Stage, *keys: str) -> list[TaskRow]:
    """Agents at work on one job."""
    await submit(stage, *keys, budget=1.0)
    return [await stage.claim(task_id(key)) for key in keys]


@scenario
async def test_an_account_that_nobody_has_come_to_is_empty(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)

        assert await stage.accounting.read(TENANT, "job/none") == Account(
            tenant=TENANT, name="job/none"
        )


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_of_many_at_once_each_counts_and_none_twice(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = await staged(backend), Stage(backend)
        keys = [f"t{number}" for number in range(8)]
        rows = await claimed(stage, *keys)

        async def spends(process: Stage, row: TaskRow) -> str | None:
            refused = await reserve(process, row, 0.125)
            if refused is None:
                await settle(process, row, 0.125)
            await process.accounting.close(row, job_account(job_id()))
            return refused

        spending = [spends(stage if n % 2 else other, row) for n, row in enumerate(rows)]
        refused = await stage.in_time(_all(spending))

        granted = [why for why in refused if why is None]
        account = await account_of_job(stage)
        assert account.spent.cost_usd == 0.125 * len(granted)
        assert account.holdings == ()


async def _all(doing: list[Any]) -> list[str | None]:
    return await asyncio.gather(*doing)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("after_the_write", [False, True], ids=["never arrived", "answer lost"])
@scenario
async def test_what_nobody_answered_is_done_once(
    kind: str, after_the_write: bool, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        (row,) = await claimed(stage, "a")
        error = OutcomeUnknown("gone") if after_the_write else BackendUnavailable("down")
        accounts = Flaky(
            backend.accounts, "commit", error, times=2, after_the_write=after_the_write
        )
        flaky = stage.with_ports(accounts=accounts)

        assert await stage.in_time(reserve(flaky, row, 0.5)) is None
        await stage.in_time(settle(flaky, row, 0.25))

        assert accounts.failures == 2
        account = await account_of_job(stage)
        assert (account.version, account.taken) == (2, usd(0.25))


@scenario
async def test_an_answer_that_was_lost_before_others_came_is_not_counted_again(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        first, second = await claimed(stage, "a", "b")

        async def other() -> None:
            assert await reserve(stage, second, 0.25) is None

        lost = Flaky(backend.accounts, "commit", OutcomeUnknown("gone"), after_the_write=True)
        # The second look at it comes after somebody else's.
        accounts = Interposed(lost, "commit", before=other, at=2)

        assert await stage.in_time(reserve(stage.with_ports(accounts=accounts), first, 0.5)) is None

        assert (await account_of_job(stage)).taken == usd(0.75)


@scenario
async def test_accounts_that_stay_out_of_reach_are_given_up(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        (row,) = await claimed(stage, "a")
        accounts = Flaky(backend.accounts, "account", times=None)

        with pytest.raises(BackendUnavailable):
            await stage.in_time(reserve(stage.with_ports(accounts=accounts), row, 0.5))


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_the_dead_had_reserved_keeps_nobody_from_it(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        dead, waits = await claimed(stage, "a", "b")
        assert await reserve(stage, dead, 0.5) is None
        await settle(stage, dead, 0.25, reserved=0.75)
        assert await reserve(stage, waits, 0.5) == "$1.00 of $1.00 is spent or reserved"

        await stage.lost("a")

        assert await reserve(stage, waits, 0.5) is None
        account = await account_of_job(stage)
        assert (account.closed, account.taken) == (usd(0.25), usd(0.75))
        assert [one.task_id for one in account.holdings] == [waits.id]


@scenario
async def test_what_the_next_attempt_of_a_task_holds_is_not_the_deads(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        first, waits = await claimed(stage, "a", "b")
        assert await reserve(stage, first, 1.0) is None
        again = await stage.claim((await stage.lost("a")).id)

        # The lease is another attempt's: what the first has left is nobody's.
        assert await reserve(stage, waits, 0.5) is None
        assert await reserve(stage, again, 0.5) is None
        assert (await account_of_job(stage)).taken == usd(1.0)
        with pytest.raises(Stale):
            await reserve(stage, first, 0.1)


@scenario
async def test_the_living_are_left_alone_and_who_is_refused_has_nothing(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        lives, waits = await claimed(stage, "a", "b")
        assert await reserve(stage, lives, 1.0) is None
        before = await account_of_job(stage)

        assert await reserve(stage, waits, 0.5) is not None

        assert await account_of_job(stage) == before
        await settle(stage, lives, 0.5)
        assert await reserve(stage, waits, 0.5) is None


@scenario
async def test_a_task_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        known, waits = await claimed(stage, "a", "b")
        spec = replace(known.spec, id=f"{known.spec.job_id}_gone", key="gone")
        gone = replace(known, spec=spec)
        assert await reserve(stage, gone, 1.0) is None

        assert await reserve(stage, waits, 0.5) is None
        assert (await account_of_job(stage)).taken == usd(0.5)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_attempt_that_is_forgotten_is_closed_wherever_it_may_have_spent(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        (row,) = await claimed(stage, "a")
        yesterday = stage.clock.now()
        stage.clock.advance(stage.clock.now().replace(day=8, hour=1) - stage.clock.now())
        today = stage.clock.now()
        names = [job_account(job_id()), day_account(yesterday), day_account(today)]
        for name in names:
            wanted = {"spent": NOTHING, "reserved": NOTHING, "wanted": usd(0.5)}
            assert await stage.accounting.reserve(row, name, LIMIT, **wanted) is None

        await stage.accounting.forget(row, yesterday, today)
        await stage.accounting.forget(row, yesterday, today)

        for name in names:
            account = await stage.accounting.read(TENANT, name)
            assert (account.holdings, account.spent, account.version) == ((), NOTHING, 2)
        assert (await account_of_day(stage)).name == names[2]
