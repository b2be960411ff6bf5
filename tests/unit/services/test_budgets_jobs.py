"""Budget that is added to a job lets its tasks continue, despite crashes."""

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from longshore.core.budgets import Budget, BudgetScope, Reservation, job_budget_name
from longshore.core.tasks.rows import IntentKind
from longshore.errors import BackendUnavailable, CommandRefused, NotFound, UsageError
from longshore.services import reads
from longshore.services.budgets import BudgetStatus
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.agent_spending import (
    ANN,
    MORE,
    agent_harness,
    park,
    spend,
    states,
    submit,
    usd,
)
from tests.unit.services.harness import (
    BACKENDS,
    IN_MEMORY,
    TENANT,
    ServiceHarness,
    job_id,
    open_backend,
    scenario,
)
from tests.unit.services.port_wrappers import Crash, InterposedPort, crash_at

LATER = {**ANN, "request_id": "r2"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_tasks_parked_for_this_budget_resume_and_those_parked_for_another_do_not(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, "a", "b", "c", "d", budget=1.0)
        for key, scope in (("a", BudgetScope.JOB), ("b", BudgetScope.DAY), ("c", BudgetScope.JOB)):
            await park(harness, key, scope)

        status = await harness.budget_operations.add(TENANT, job_id(), MORE, **ANN)

        assert await states(harness) == {
            "a": "pending",
            "b": "parked",
            "c": "pending",
            "d": "pending",
        }
        assert (status.added, (await harness.job()).intents) == (MORE, ())
        assert await harness.job_event_types() == ["Job Created", "Job Budget Added"]


@scenario
async def test_more_than_a_page_of_tasks_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "AT_ONCE", 2)
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        keys = [f"t{number}" for number in range(5)]
        await submit(harness, *keys, budget=1.0)
        for key in keys:
            await park(harness, key, BudgetScope.JOB)

        await harness.budget_operations.add(TENANT, job_id(), MORE, **ANN)

        assert set((await states(harness)).values()) == {"pending"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_adds_to_a_job_once_even_if_the_job_has_ended_since(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, budget=1.0)
        await harness.budget_operations.add(TENANT, job_id(), MORE, **ANN)
        await harness.finish()

        status = await harness.budget_operations.add(TENANT, job_id(), MORE, **ANN)

        assert status.added == MORE
        with pytest.raises(CommandRefused):
            await harness.budget_operations.add(TENANT, job_id(), MORE, **LATER)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_addition_to_a_job_whose_answer_was_lost_counts_once(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = await agent_harness(backend), ServiceHarness(backend)
        await submit(harness, "a", "b", budget=1.0)
        await park(harness, "a", BudgetScope.JOB)

        async def goes_on() -> None:
            await other.sweeper.sweep()
            await other.finish()

        ledger = InterposedPort(backend.ledger, "commit", after=goes_on)
        lost = FlakyPort(ledger, "commit", after_write=True)
        unlucky = harness.with_ports(ledger=lost)

        status = await harness.advance_until_done(
            unlucky.budget_operations.add(TENANT, job_id(), MORE, **ANN)
        )

        assert (lost.failures, status.added) == (1, MORE)
        assert (await harness.job()).intents == ()
        assert set((await states(harness)).values()) == {"completed"}
        assert (await harness.job_event_types()).count("Job Budget Added") == 1


@pytest.mark.parametrize("more", [Budget(usd=1.0, tokens=5), Budget(minutes=1.0)])
@scenario
async def test_budget_without_a_limit_cannot_be_added_to(tmp_path: Path, more: Budget) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, budget={"usd": 1.0})

        with pytest.raises(UsageError, match="to raise; "):
            await harness.budget_operations.add(TENANT, job_id(), more, **ANN)
        assert (await harness.job()).allowance is None


@scenario
async def test_another_tenants_job_is_not_there(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, budget=1.0)

        for tenant, id_ in (("evil", job_id()), (TENANT, job_id("none"))):
            with pytest.raises(NotFound):
                await harness.budget_operations.add(tenant, id_, MORE, **ANN)
            with pytest.raises(NotFound):
                await harness.budget_operations.get(tenant, id_)


@scenario
async def test_the_budget_of_a_job_shows_its_limit_and_what_is_spent(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, "a", "b", budget=1.0)
        await spend(harness, "a", job_budget_name(job_id()), 0.25)
        row, name = await harness.task("b"), job_budget_name(job_id())
        own = Reservation(task_id=row.id, attempt=row.attempt)
        await harness.reservations.reserve(TENANT, name, Budget(usd=1.0), own, usd(0.5))
        before = await harness.budget_operations.get(TENANT, job_id())
        await harness.budget_operations.add(TENANT, job_id(), MORE, **ANN)

        assert before == BudgetStatus(limit=Budget(usd=1.0), spent=usd(0.25), reserved=usd(0.5))
        assert await harness.budget_operations.get(TENANT, job_id()) == BudgetStatus(
            limit=Budget(usd=3.0), spent=usd(0.25), reserved=usd(0.5), added=MORE
        )


@pytest.mark.parametrize("after_the_call", [False, True])
@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_an_addition_to_a_budget_takes_effect_after_a_crash_at_any_call(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in count(1):
        async with open_backend(kind, tmp_path) as backend:
            harness = await agent_harness(backend)
            await submit(harness, "a", "b", budget=1.0)
            for key in "ab":
                await spend(harness, key, job_budget_name(job_id()), 0.5)
                await park(harness, key, BudgetScope.JOB)
            deaths: list[str] = []
            dying = ServiceHarness(crash_at(backend, at, after_call=after_the_call, crashes=deaths))
            with suppress(Crash):
                await dying.budget_operations.add(TENANT, job_id(), MORE, **ANN)

            await harness.sweeper.sweep()

            job = await harness.job()
            added = job.allowance is not None
            expected = {"pending"} if added else {"parked"}
            assert set((await states(harness)).values()) == expected, (at, deaths)
            assert job.intents == ()
            await harness.budget_operations.add(TENANT, job_id(), MORE, **ANN)
            assert set((await states(harness)).values()) == {"pending"}
            assert (await harness.job_event_types()).count("Job Budget Added") == 1
            if not deaths:
                break
    assert at > 5


@scenario
async def test_an_intent_that_is_left_open_is_carried_out_by_the_sweeper(tmp_path: Path) -> None:
    async with open_backend("sqlite", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, budget=1.0)
        await park(harness, "a", BudgetScope.JOB)
        ledger = FlakyPort(backend.ledger, "list_tasks", BackendUnavailable("down"), times=None)
        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(
                harness.with_ports(ledger=ledger).budget_operations.add(
                    TENANT, job_id(), MORE, **ANN
                )
            )
        (left,) = (await harness.job()).intents
        assert (left.kind, left.by) == (IntentKind.UNPARK, "ann")

        assert (await harness.sweeper.sweep())["intents_finished"] == 1
        assert await states(harness) == {"a": "pending"}
        assert (await harness.job()).intents == ()
        # Who comes with it a second time is too late.
        assert not await harness.budget_operations.finish_unpark(await harness.job(), left)
