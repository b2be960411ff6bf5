"""What is added to a tenant's day, and what goes on by itself when there is some again."""

from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from longshore.core.budgets import NO_BUDGET, Budget, Scope, day_account, day_after, job_account
from longshore.core.events.types import Usage
from longshore.errors import UsageError
from longshore.services.budgeting import Standing
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Crash, Interposed, crashing
from tests.unit.services.spending import (
    ANN,
    DAY,
    MORE,
    account_of_day,
    park,
    spend,
    staged,
    states,
    submit,
    usd,
)
from tests.unit.services.stage import (
    BACKENDS,
    IN_MEMORY,
    SECOND,
    TENANT,
    Stage,
    job_id,
    opened,
    scenario,
    task_id,
)


async def _noted(stage: Stage) -> list[str]:
    events = await stage.backend.events.history(TENANT, "SYSTEM#budget")
    return [f"{one.body.subject}: {one.body.detail} by {one.body.by}" for one in events]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_its_tasks_that_lack_it_go_on_and_the_same_request_adds_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        await submit(stage, "a", "b", budget=1.0)
        await park(stage, "a", Scope.DAY)
        await park(stage, "b", Scope.JOB)

        first = await stage.budgeting.add_to_day(TENANT, MORE, **ANN)
        again = await stage.budgeting.add_to_day(TENANT, MORE, **ANN)

        assert first == again == Standing(limit=Budget(usd=3.0), spent=Usage(), added=MORE)
        assert await states(stage) == {"a": "pending", "b": "parked"}
        assert await _noted(stage) == [f"day/2030-01-07: {MORE} added by ann"]


@scenario
async def test_it_is_for_this_day_only_and_for_this_tenant(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        await stage.budgeting.add_to_day(TENANT, MORE, **ANN)

        assert (await stage.budgeting.of_day("other")).limit == DAY
        stage.clock.advance(timedelta(days=1))
        assert (await stage.budgeting.of_day(TENANT)).limit == DAY


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_addition_to_a_day_whose_answer_was_lost_counts_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        lost = Flaky(backend.accounts, "commit", after_the_write=True)
        unlucky = stage.with_ports(accounts=lost)

        standing = await stage.in_time(unlucky.budgeting.add_to_day(TENANT, MORE, **ANN))

        assert (lost.failures, standing.added) == (1, MORE)


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_whoever_dies_at_whichever_call_asking_again_adds_nothing_twice(
    kind: str, tmp_path: Path
) -> None:
    for at in count(1):
        async with opened(kind, tmp_path) as backend:
            stage = await staged(backend, day=DAY)
            await submit(stage)
            await park(stage, "a", Scope.DAY)
            deaths: list[str] = []
            dying = Stage(crashing(backend, at, after_the_call=True, deaths=deaths), day=DAY)
            with suppress(Crash):
                await dying.budgeting.add_to_day(TENANT, MORE, **ANN)

            standing = await stage.budgeting.add_to_day(TENANT, MORE, **ANN)

            assert (standing.added, await states(stage)) == (MORE, {"a": "pending"})
            if not deaths:
                break
    assert at > 3


@scenario
async def test_a_note_that_cannot_be_kept_costs_no_budget(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        events = Flaky(backend.events, "append", RuntimeError("a bug"))

        standing = await stage.with_ports(events=events).budgeting.add_to_day(TENANT, MORE, **ANN)

        assert (events.failures, standing.added) == (1, MORE)


@pytest.mark.parametrize("day", [NO_BUDGET, Budget(tokens=5)], ids=str)
@scenario
async def test_what_nothing_limits_cannot_be_added_to(tmp_path: Path, day: Budget) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend, day=day)

        with pytest.raises(UsageError, match="the day has no budget in dollars"):
            await stage.budgeting.add_to_day(TENANT, MORE, **ANN)
        assert (await account_of_day(stage)).version == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_those_parked_for_the_day_go_on_at_midnight_and_not_before(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        await submit(stage, "a", "b", "c", budget=1.0)
        for key, scope in (("a", Scope.DAY), ("b", Scope.JOB), ("c", Scope.TASK)):
            await spend(stage, key, job_account(job_id()), 0.5)
            await spend(stage, key, day_account(stage.clock.now()), 0.5)
            await park(stage, key, scope)
        left = day_after(stage.clock.now()) - stage.clock.now()

        await stage.passes(left - SECOND)
        assert (await stage.sweeper.sweep()).unparked == 0
        await stage.passes(SECOND)

        assert (await stage.sweeper.sweep()).unparked == 1
        assert await states(stage) == {"a": "pending", "b": "parked", "c": "parked"}
        assert (await stage.told("a"))[-1] == "Task Unparked"


@scenario
async def test_more_than_a_page_of_tasks_goes_on_at_midnight(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        keys = [f"t{number}" for number in range(101)]
        await submit(stage, *keys)
        for key in keys:
            await park(stage, key, Scope.DAY)
        stage.clock.advance(timedelta(days=1))

        assert await stage.budgeting.unpark() == 101


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_of_a_shared_budget_of_which_something_is_left_again_one_goes_on(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        await submit(stage, "a", "b", "c", "d", budget=1.0)
        for key, scope in zip("abcd", (*[Scope.JOB] * 2, *[Scope.DAY] * 2), strict=True):
            await park(stage, key, scope)

        assert await stage.budgeting.unpark() == 2
        assert await states(stage) == {
            "a": "pending",
            "b": "parked",
            "c": "pending",
            "d": "parked",
        }
        await spend(stage, "a", job_account(job_id()), 1.0)
        await spend(stage, "a", day_account(stage.clock.now()), 1.0)
        assert await stage.budgeting.unpark() == 0


@scenario
async def test_what_the_dead_had_reserved_lets_another_go_on(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, "a", "b", budget=1.0)
        dead = await stage.claim(task_id("a"))
        wanted = {"spent": Usage(), "reserved": Usage(), "wanted": usd(1.0)}
        name = job_account(job_id())
        await stage.accounting.reserve(dead, name, Budget(usd=1.0), **wanted)
        await park(stage, "b", Scope.JOB)
        assert await stage.budgeting.unpark() == 0

        # It had spent nothing that anybody knows of, and nobody asks for it again.
        await stage.lost("a")

        assert await stage.budgeting.unpark() == 1
        assert (await states(stage))["b"] == "pending"
        assert (await stage.accounting.read(TENANT, name)).holdings == ()


@scenario
async def test_many_that_rest_for_something_else_do_not_hide_one_that_may_go_on(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        keys = [f"t{number}" for number in range(100)]
        await submit(stage, *keys, "z", budget=1.0)
        for key in keys:
            await park(stage, key, Scope.TASK)
        await park(stage, "z", Scope.JOB)

        assert await stage.budgeting.unpark() == 1
        assert (await states(stage))["z"] == "pending"


@scenario
async def test_one_that_cannot_be_let_go_on_does_not_keep_the_others_from_it(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend, day=DAY)
        await submit(stage, "a", "b")
        for key in "ab":
            await park(stage, key, Scope.DAY)
        stage.clock.advance(timedelta(days=1))
        ledger = Flaky(backend.ledger, "commit", RuntimeError("a bug"))

        assert await stage.with_ports(ledger=ledger).budgeting.unpark() >= 1
        assert "pending" in (await states(stage)).values()


@scenario
async def test_two_sweepers_at_once_let_a_task_go_on_once(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage, other = await staged(backend, day=DAY), Stage(backend, day=DAY)
        await submit(stage)
        await park(stage, "a", Scope.DAY)
        stage.clock.advance(timedelta(days=1))
        ledger = Interposed(backend.ledger, "commit", before=other.budgeting.unpark)

        assert await stage.with_ports(ledger=ledger).budgeting.unpark() == 0
        assert (await stage.told("a")).count("Task Unparked") == 1


@scenario
async def test_an_attempt_that_had_spent_nothing_is_not_looked_for_in_any_account(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage)
        held = await stage.claim(task_id("a"))
        accounts = Flaky(backend.accounts, "account", times=None)

        await stage.with_ports(accounts=accounts).budgeting.attempt_lost(
            held, began=stage.clock.now()
        )

        assert accounts.calls == 0
