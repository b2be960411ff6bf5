"""Operators read the budget of a task and add to it, and the task resumes."""

import contextlib
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import WorkLimits
from longshore.core.budgets import NO_BUDGET, Budget, BudgetScope
from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.errors import CommandRefused, NotAllowed, NotFound, UsageError
from longshore.services.app import Application, Caller
from longshore.services.budgets import BudgetStatus
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.agent_spending import ANN, DAY, MORE, agent_harness, park, submit, usd
from tests.unit.services.harness import (
    BACKENDS,
    SECOND,
    TENANT,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("scope", [BudgetScope.TASK, BudgetScope.STEP])
@scenario
async def test_a_parked_task_resumes_and_the_same_request_adds_once(
    kind: str, scope: BudgetScope, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = await agent_harness(backend, budget=1.0)
        await submit(harness)
        await park(harness, "a", scope)

        first = await harness.budget_operations.add(TENANT, task_id("a"), MORE, **ANN)
        resumed = await harness.task("a")
        again = await harness.budget_operations.add(TENANT, task_id("a"), MORE, **ANN)

        assert (first.added, again) == (MORE, first)
        assert (resumed.state, await harness.task("a")) == (TaskState.PENDING, resumed)
        assert await harness.messages() != []
        assert (await harness.event_types("a"))[-2:] == ["Task Budget Added", "Task Unparked"]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_addition_whose_answer_was_lost_counts_once(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = await agent_harness(backend, budget=1.0), ServiceHarness(backend)
        await submit(harness)
        await park(harness, "a", BudgetScope.TASK)

        async def goes_on() -> None:
            await other.complete(task_id("a"))

        ledger = InterposedPort(backend.ledger, "commit", after=goes_on)
        lost = FlakyPort(ledger, "commit", after_write=True)
        unlucky = harness.with_ports(ledger=lost)

        status = await harness.advance_until_done(
            unlucky.budget_operations.add(TENANT, task_id("a"), MORE, **ANN)
        )

        assert (lost.failures, status.added) == (1, MORE)
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert (await harness.event_types("a")).count("Task Budget Added") == 1


@scenario
async def test_adding_to_the_budget_of_an_ended_task_is_refused(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget=1.0)
        await submit(harness)
        await harness.complete(task_id("a"))

        with pytest.raises(CommandRefused, match="only after it is resumed"):
            await harness.budget_operations.add(TENANT, task_id("a"), MORE, **ANN)


@scenario
async def test_another_tenants_task_is_not_there(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget=1.0)
        await submit(harness)

        for tenant, id_ in (("evil", task_id("a")), (TENANT, task_id("b"))):
            with pytest.raises(NotFound):
                await harness.budget_operations.add(tenant, id_, MORE, **ANN)
            with pytest.raises(NotFound):
                await harness.budget_operations.get(tenant, id_)
        assert (await harness.task("a")).allowance is None


@scenario
async def test_the_budget_of_a_task_shows_its_limit_and_what_is_spent(tmp_path: Path) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, budget=1.0)
        await submit(harness)
        await park(harness, "a", BudgetScope.TASK, spent=1.25)
        await harness.budget_operations.add(TENANT, task_id("a"), MORE, **ANN)
        claimed = await harness.claim(task_id("a"))
        renew = c.Renew(fence=claimed.fence, lease_duration=SECOND, usage=usd(0.5))
        await harness.transitions.apply_to_task(claimed.id, renew)

        assert await harness.budget_operations.get(TENANT, task_id("a")) == BudgetStatus(
            limit=Budget(usd=3.0), spent=usd(1.75), added=MORE
        )


@pytest.mark.parametrize(
    "definition",
    [
        Definition(name="own", runner=RunnerKind.COMMAND, overridable=("argv",)),
        Definition(name="own", runner=RunnerKind.AGENT, options={"prompt": "x"}),
        Definition(name="own", runner=RunnerKind.AGENT, options={}),
    ],
    ids=["no agent", "no budget", "no plan"],
)
@scenario
async def test_what_has_no_budget_may_spend_what_it_will(
    tmp_path: Path, definition: Definition
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = ServiceHarness(backend)
        await backend.definitions.put(TENANT, definition)
        await harness.submit(make_task("a"), make_task("b", name="own"))

        for key in "ab":
            standing = await harness.budget_operations.get(TENANT, task_id(key))
            assert standing == BudgetStatus(limit=NO_BUDGET, spent=Usage())


@pytest.mark.parametrize(
    ("more", "request_id", "message"),
    [
        (MORE, "", "a request id must be"),
        (MORE, "x" * 257, "a request id must be"),
        (NO_BUDGET, "r1", "nothing is added"),
    ],
    ids=["no request", "too long", "nothing"],
)
@scenario
async def test_an_empty_addition_or_one_without_a_request_id_is_refused(
    tmp_path: Path, more: Budget, request_id: str, message: str
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend, day_budget=DAY)
        await submit(harness, budget=1.0)
        named: dict[str, Any] = {"by": "ann", "request_id": request_id}
        for adding in (
            harness.budget_operations.add(TENANT, task_id("a"), more, **named),
            harness.budget_operations.add(TENANT, job_id(), more, **named),
            harness.budget_operations.add(TENANT, None, more, **named),
        ):
            with pytest.raises(UsageError, match=message):
                await adding


@scenario
async def test_a_limited_caller_does_not_continue_other_tasks_by_more_budget(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        harness = await agent_harness(backend)
        await submit(harness, budget={"usd": 1})
        await park(harness, "a", BudgetScope.JOB)

        for name, state in (("other", TaskState.PARKED), ("agent-task", TaskState.PENDING)):
            limits = WorkLimits(definitions=frozenset({name}))
            caller = Caller(tenant=TENANT, name="ann", limits=limits)
            expected = pytest.raises(NotAllowed) if name == "other" else contextlib.nullcontext()
            with expected:
                await Application(harness, caller).add_budget(MORE, job_id(), request_id="more")
            assert (await harness.task("a")).state is state
