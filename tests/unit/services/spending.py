"""Agents that spend: their definitions, what they ask for, and what it comes to."""

from datetime import timedelta
from typing import Any

from longshore.core import commands as c
from longshore.core.budgets import Account, Budget, Scope, day_account, day_after, job_account
from longshore.core.definition import Definition, RunnerKind
from longshore.core.events.types import Usage
from longshore.core.rows import TaskRow
from longshore.ports.backend import Backend
from longshore.ports.runner import Asked, Report, Used
from longshore.services.producer import Accepted
from tests.unit.services.stage import REQUEST, SECOND, TENANT, Stage, a_task, job_id, task_id

AGENT = {"name": "agent-task", "input": {}}
DAY = Budget(usd=1.0)
MORE = Budget(usd=2.0)
ANN: dict[str, Any] = {"by": "ann", "request_id": "r1"}


def usd(amount: float) -> Usage:
    return Usage(cost_usd=amount)


def asks(number: int, spent: float = 0.0, wanted: float = 0.25, step: str = "task") -> Asked:
    return Asked(number, step, usd(spent), usd(wanted))


def turns(
    count: int, each: float = 0.25, *, pause: timedelta | None = None
) -> list[Report | timedelta]:
    """So many questions one after the other, and what has been spent after each."""
    said: list[Report | timedelta] = []
    for number in range(1, count + 1):
        said += [asks(number, (number - 1) * each, each), *([pause] if pause else [])]
        said.append(Used(usd(number * each), settles=number))
    return said


async def staged(backend: Backend, *, day: Budget | None = None, **options: Any) -> Stage:
    """A stage with an agent of these options."""
    definition = Definition(
        name="agent-task", runner=RunnerKind.AGENT, options={"prompt": "Do it.", **options}
    )
    await backend.definitions.put(TENANT, definition)
    return Stage(backend, day=day) if day else Stage(backend)


async def submit(
    stage: Stage, *keys: str, budget: Any = None, request_id: str = REQUEST
) -> Accepted:
    """A job of agents, with a budget if there is one."""
    tasks = [a_task(key, **AGENT) for key in keys or ("a",)]
    document = {"tasks": tasks} if budget is None else {"tasks": tasks, "budget": budget}
    return await stage.producer.submit(TENANT, request_id, document)


async def account_of_job(stage: Stage, request_id: str = REQUEST) -> Account:
    return await stage.accounting.read(TENANT, job_account(job_id(request_id)))


async def account_of_day(stage: Stage) -> Account:
    return await stage.accounting.read(TENANT, day_account(stage.clock.now()))


def answers(stage: Stage) -> list[list[tuple[int, str | None]]]:
    """What each child was told, one after the other."""
    return [child.answers for child in stage.runner.children]


async def park(stage: Stage, key: str, scope: Scope, *, spent: float = 0.0) -> TaskRow:
    """An attempt that finds nothing left of a budget."""
    held = await stage.claim(task_id(key))
    until = day_after(stage.clock.now()) if scope is Scope.DAY else None
    command = c.Park(
        fence=held.fence,
        scope=scope,
        reason="all is spent",
        duration=SECOND,
        until=until,
        usage=usd(spent),
    )
    return await stage.transitions.task(held.id, command, row=held)


async def spend(stage: Stage, key: str, name: str, amount: float) -> None:
    """What an attempt of another task has spent of a shared budget."""
    row = await stage.task(key)
    wanted = {"spent": Usage(), "reserved": Usage(), "wanted": usd(amount)}
    await stage.accounting.reserve(row, name, Budget(usd=9.0), **wanted)
    await stage.accounting.close(row, name, spent=usd(amount))


async def states(stage: Stage) -> dict[str, str]:
    return {key: state.value for key, state in (await stage.states()).items()}
