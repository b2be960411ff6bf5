"""Budget is added to a tenant's day, and parked tasks resume when the day has budget again."""

from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from longshore.core.budgets import (
    NO_BUDGET,
    Budget,
    BudgetScope,
    Reservation,
    day_budget_name,
    job_budget_name,
    next_day_start,
)
from longshore.core.events.types import Usage
from longshore.errors import UsageError
from longshore.services import reads
from longshore.services.budgets import BudgetStatus
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.agent_spending import (
    ANN,
    DAY,
    MORE,
    agent_harness,
    day_budget,
    park,
    spend,
    states,
    submit,
    usd,
)
from tests.unit.services.harness import (
    BACKENDS,
    IN_MEMORY,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at


async def _added_events(harness: ServiceHarness) -> list[str]:
    events = await harness.backend.events.history(TENANT, "SYSTEM#budget")
    return [f"{item.body.subject}: {item.body.detail} by {item.body.by}" for item in events]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tasks_parked_for_this_budget_resume_and_the_same_request_adds_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        await submit(harness, "a", "b", budget=1.0)
        await park(harness, "a", BudgetScope.DAY)
        await park(harness, "b", BudgetScope.JOB)

        first = await harness.budget_operations.add(TENANT, None, MORE, **ANN)
        again = await harness.budget_operations.add(TENANT, None, MORE, **ANN)

        assert first == again == BudgetStatus(limit=Budget(usd=3.0), spent=Usage(), added=MORE)
        assert await states(harness) == {"a": "pending", "b": "parked"}
        assert await _added_events(harness) == [f"day/2030-01-07: {MORE} added by ann"]


@scenario
async def test_an_addition_is_for_this_day_and_this_tenant_only(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        await harness.budget_operations.add(TENANT, None, MORE, **ANN)

        assert (await harness.budget_operations.get("other", None)).limit == DAY
        harness.clock.advance(timedelta(days=1))
        assert (await harness.budget_operations.get(TENANT, None)).limit == DAY


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_addition_to_a_day_whose_answer_was_lost_counts_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        lost = FlakyPort(backend.budgets, "commit", after_write=True)
        unlucky = harness.with_ports(budgets=lost)

        standing = await harness.advance_until_done(
            unlucky.budget_operations.add(TENANT, None, MORE, **ANN)
        )

        assert (lost.failures, standing.added) == (1, MORE)


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_repeated_addition_after_a_crash_at_any_call_adds_once(
    kind: str, tmp_path: Path
) -> None:
    for at in count(1):
        async with open_backend(kind, tmp_path) as backend:
            harness = await agent_harness(backend, day_budget=DAY)
            await submit(harness)
            await park(harness, "a", BudgetScope.DAY)
            deaths: list[str] = []
            dying = ServiceHarness(
                crash_at(backend, at, after_call=True, crashes=deaths), day_budget=DAY
            )
            with suppress(Crash):
                await dying.budget_operations.add(TENANT, None, MORE, **ANN)

            standing = await harness.budget_operations.add(TENANT, None, MORE, **ANN)

            assert (standing.added, await states(harness)) == (MORE, {"a": "pending"})
            if not deaths:
                break
    assert at > 3


@scenario
async def test_a_note_that_cannot_be_kept_costs_no_budget(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        events = FlakyPort(backend.events, "append", RuntimeError("a bug"))

        standing = await harness.with_ports(events=events).budget_operations.add(
            TENANT, None, MORE, **ANN
        )

        assert (events.failures, standing.added) == (1, MORE)


@pytest.mark.parametrize("day", [NO_BUDGET, Budget(tokens=5)], ids=str)
@scenario
async def test_budget_without_a_limit_cannot_be_added_to(tmp_path: Path, day: Budget) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend, day_budget=day)

        with pytest.raises(UsageError, match="the day has no limit in dollars to raise"):
            await harness.budget_operations.add(TENANT, None, MORE, **ANN)
        assert (await day_budget(harness)).version == 0


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tasks_parked_for_the_day_resume_at_midnight_and_not_before(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        await submit(harness, "a", "b", "c", budget=1.0)
        for key, scope in (("a", BudgetScope.DAY), ("b", BudgetScope.JOB), ("c", BudgetScope.TASK)):
            await spend(harness, key, job_budget_name(job_id()), 0.5)
            await spend(harness, key, day_budget_name(harness.clock.now()), 0.5)
            await park(harness, key, scope)
        left = next_day_start(harness.clock.now()) - harness.clock.now()

        await harness.advance(left - SECOND)
        assert (await harness.sweeper.sweep())["unparked"] == 0
        await harness.advance(SECOND)

        assert (await harness.sweeper.sweep())["unparked"] == 1
        assert await states(harness) == {"a": "pending", "b": "parked", "c": "parked"}
        assert (await harness.event_types("a"))[-1] == "Task Unparked"


@scenario
async def test_more_than_a_page_of_tasks_resumes_at_midnight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        keys = [f"t{number}" for number in range(5)]
        await submit(harness, *keys)
        for key in keys:
            await park(harness, key, BudgetScope.DAY)
        harness.clock.advance(timedelta(days=1))

        assert await harness.budget_operations.unpark_ready() == 5


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_task_resumes_when_a_shared_budget_has_something_left_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        await submit(harness, "a", "b", "c", "d", budget=1.0)
        for key, scope in zip(
            "abcd", (*[BudgetScope.JOB] * 2, *[BudgetScope.DAY] * 2), strict=True
        ):
            await park(harness, key, scope)

        assert await harness.budget_operations.unpark_ready() == 2
        assert await states(harness) == {
            "a": "pending",
            "b": "parked",
            "c": "pending",
            "d": "parked",
        }
        await spend(harness, "a", job_budget_name(job_id()), 1.0)
        await spend(harness, "a", day_budget_name(harness.clock.now()), 1.0)
        assert await harness.budget_operations.unpark_ready() == 0


@scenario
async def test_the_released_reservation_of_a_dead_attempt_lets_another_task_resume(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, "a", "b", budget=1.0)
        dead = await harness.claim(task_id("a"))
        own, name = Reservation(task_id=dead.id, attempt=dead.attempt), job_budget_name(job_id())
        await harness.reservations.reserve(TENANT, name, Budget(usd=1.0), own, usd(1.0))
        await park(harness, "b", BudgetScope.JOB)
        assert await harness.budget_operations.unpark_ready() == 0

        # It had no recorded spending, and no attempt asks for the reservation again.
        await harness.end_lease("a")

        assert await harness.budget_operations.unpark_ready() == 1
        assert (await states(harness))["b"] == "pending"
        assert (await harness.reservations.read(TENANT, name)).reservations == ()


@scenario
async def test_many_tasks_parked_for_another_reason_do_not_hide_one_that_may_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        keys = [f"t{number}" for number in range(4)]
        await submit(harness, *keys, "z", budget=1.0)
        for key in keys:
            await park(harness, key, BudgetScope.TASK)
        await park(harness, "z", BudgetScope.JOB)

        assert await harness.budget_operations.unpark_ready() == 1
        assert (await states(harness))["z"] == "pending"


@scenario
async def test_a_task_that_cannot_be_resumed_does_not_block_the_others(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        await submit(harness, "a", "b")
        for key in "ab":
            await park(harness, key, BudgetScope.DAY)
        harness.clock.advance(timedelta(days=1))
        ledger = FlakyPort(backend.ledger, "commit", RuntimeError("a bug"))

        assert await harness.with_ports(ledger=ledger).budget_operations.unpark_ready() >= 1
        assert "pending" in (await states(harness)).values()


@scenario
async def test_two_concurrent_sweepers_resume_a_task_once(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness, other = (
            await agent_harness(backend, day_budget=DAY),
            ServiceHarness(backend, day_budget=DAY),
        )
        await submit(harness)
        await park(harness, "a", BudgetScope.DAY)
        harness.clock.advance(timedelta(days=1))
        ledger = InterposedPort(
            backend.ledger, "commit", before=other.budget_operations.unpark_ready
        )

        assert await harness.with_ports(ledger=ledger).budget_operations.unpark_ready() == 0
        assert (await harness.event_types("a")).count("Task Unparked") == 1


@scenario
async def test_an_attempt_that_had_spent_nothing_is_not_looked_for_in_any_account(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness)
        claimed = await harness.claim(task_id("a"))
        accounts = FlakyPort(backend.budgets, "get", times=None)

        await harness.with_ports(budgets=accounts).reservations.close_lost_attempt(claimed)

        assert accounts.calls == 0
