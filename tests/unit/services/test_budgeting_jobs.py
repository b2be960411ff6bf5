"""What is added to a job's budget lets its tasks go on, whoever dies meanwhile."""

from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from longshore.core.budgets import Budget, Scope, job_account
from longshore.core.events.types import Usage
from longshore.core.rows import IntentKind
from longshore.errors import BackendUnavailable, CommandRefused, NotFound, UsageError
from longshore.services.budgeting import Standing
from longshore.testing.flaky import Flaky
from tests.unit.services.ports import Crash, Interposed, crashing
from tests.unit.services.spending import (
    ANN,
    MORE,
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
    TENANT,
    Stage,
    job_id,
    opened,
    scenario,
)

LATER = {**ANN, "request_id": "r2"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_its_tasks_that_lack_it_go_on_and_those_that_lack_another_rest_on(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, "a", "b", "c", "d", budget=1.0)
        for key, scope in (("a", Scope.JOB), ("b", Scope.DAY), ("c", Scope.JOB)):
            await park(stage, key, scope)

        job = await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)

        assert await states(stage) == {
            "a": "pending",
            "b": "parked",
            "c": "pending",
            "d": "pending",
        }
        assert job.intents == ()
        assert job.allowance is not None
        assert (job.allowance.added, job) == (MORE, await stage.job())
        assert await stage.job_told() == ["Job Created", "Job Budget Added"]


@scenario
async def test_more_than_a_page_of_tasks_goes_on(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        keys = [f"t{number}" for number in range(101)]
        await submit(stage, *keys, budget=1.0)
        for key in keys:
            await park(stage, key, Scope.JOB)

        await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)

        assert set((await states(stage)).values()) == {"pending"}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_same_request_adds_to_a_job_once_even_if_the_job_has_ended_since(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, budget=1.0)
        await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)
        await stage.finish()

        job = await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)

        assert job.allowance is not None
        assert job.allowance.added == MORE
        with pytest.raises(CommandRefused):
            await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **LATER)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_addition_to_a_job_whose_answer_was_lost_counts_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage, other = await staged(backend), Stage(backend)
        await submit(stage, "a", "b", budget=1.0)
        await park(stage, "a", Scope.JOB)

        async def goes_on() -> None:
            await other.sweeper.sweep()
            await other.finish()

        ledger = Interposed(backend.ledger, "commit", after=goes_on)
        lost = Flaky(ledger, "commit", after_the_write=True)
        unlucky = stage.with_ports(ledger=lost)

        job = await stage.in_time(unlucky.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN))

        assert lost.failures == 1
        assert job.allowance is not None
        assert (job.allowance.added, job.intents) == (MORE, ())
        assert set((await states(stage)).values()) == {"completed"}
        assert (await stage.job_told()).count("Job Budget Added") == 1


@pytest.mark.parametrize("more", [Budget(usd=1.0, tokens=5), Budget(minutes=1.0)])
@scenario
async def test_what_nothing_limits_cannot_be_added_to(tmp_path: Path, more: Budget) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, budget={"usd": 1.0})

        with pytest.raises(UsageError, match="nothing limits it"):
            await stage.budgeting.add_to_job(TENANT, job_id(), more, **ANN)
        assert (await stage.job()).allowance is None


@scenario
async def test_another_tenants_job_is_not_there(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, budget=1.0)

        for tenant, id_ in (("evil", job_id()), (TENANT, job_id("none"))):
            with pytest.raises(NotFound):
                await stage.budgeting.add_to_job(tenant, id_, MORE, **ANN)
            with pytest.raises(NotFound):
                await stage.budgeting.of_job(tenant, id_)


@scenario
async def test_it_is_told_what_may_be_spent_on_a_job_and_was(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, "a", "b", budget=1.0)
        await spend(stage, "a", job_account(job_id()), 0.25)
        wanted = {"spent": Usage(), "reserved": Usage(), "wanted": usd(0.5)}
        name = job_account(job_id())
        await stage.accounting.reserve(await stage.task("b"), name, Budget(usd=1.0), **wanted)
        before = await stage.budgeting.of_job(TENANT, job_id())
        await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)

        assert before == Standing(limit=Budget(usd=1.0), spent=usd(0.25), reserved=usd(0.5))
        assert await stage.budgeting.of_job(TENANT, job_id()) == Standing(
            limit=Budget(usd=3.0), spent=usd(0.25), reserved=usd(0.5), added=MORE
        )


@pytest.mark.parametrize("after_the_call", [False, True])
@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_whoever_dies_at_whichever_call_all_that_was_added_is_acted_on(
    kind: str, after_the_call: bool, tmp_path: Path
) -> None:
    for at in count(1):
        async with opened(kind, tmp_path) as backend:
            stage = await staged(backend)
            await submit(stage, "a", "b", budget=1.0)
            for key in "ab":
                await spend(stage, key, job_account(job_id()), 0.5)
                await park(stage, key, Scope.JOB)
            deaths: list[str] = []
            dying = Stage(crashing(backend, at, after_the_call=after_the_call, deaths=deaths))
            with suppress(Crash):
                await dying.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)

            await stage.sweeper.sweep()

            job = await stage.job()
            added = job.allowance is not None
            expected = {"pending"} if added else {"parked"}
            assert set((await states(stage)).values()) == expected, (at, deaths)
            assert job.intents == ()
            await stage.budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)
            assert set((await states(stage)).values()) == {"pending"}
            assert (await stage.job_told()).count("Job Budget Added") == 1
            if not deaths:
                break
    assert at > 5


@scenario
async def test_an_intent_that_is_left_open_is_carried_out_by_the_sweeper(tmp_path: Path) -> None:
    async with opened("sqlite", tmp_path) as backend:
        stage = await staged(backend)
        await submit(stage, budget=1.0)
        await park(stage, "a", Scope.JOB)
        ledger = Flaky(backend.ledger, "list_tasks", BackendUnavailable("down"), times=None)
        with pytest.raises(BackendUnavailable):
            await stage.in_time(
                stage.with_ports(ledger=ledger).budgeting.add_to_job(TENANT, job_id(), MORE, **ANN)
            )
        (left,) = (await stage.job()).intents
        assert (left.kind, left.by) == (IntentKind.UNPARK, "ann")

        assert (await stage.sweeper.sweep()).intents_finished == 1
        assert await states(stage) == {"a": "pending"}
        assert (await stage.job()).intents == ()
        # Who comes with it a second time is too late.
        assert not await stage.budgeting.finish(await stage.job(), left)
