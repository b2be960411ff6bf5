"""Tasks that are parked and go on, and what people hear of it."""

from typing import Any

from longshore.core import commands as c
from longshore.core.alerting import Notice
from longshore.core.budgets import Scope
from longshore.core.ids import job_id_of, task_id_of
from longshore.core.piles import Pile
from tests.unit.services.stage import SECOND, TENANT, Stage, a_task


async def parks(
    stage: Stage,
    key: str = "a",
    scope: Scope = Scope.TASK,
    *,
    tenant: str = TENANT,
    **fields: Any,
) -> str:
    """A task of a job of its own is parked; its id."""
    await stage.producer.submit(tenant, key, {"tasks": [a_task(key, **fields)]})
    id_ = task_id_of(job_id_of(tenant, key), key)
    stage.clock.advance(SECOND)
    claimed = await stage.claim(id_)
    until = stage.clock.now() + 9 * SECOND if scope is Scope.DAY else None
    park = c.Park(
        fence=claimed.fence, scope=scope, reason="all is spent", duration=SECOND, until=until
    )
    await stage.transitions.task(id_, park)
    return id_


async def goes_on(stage: Stage, *ids: str, scope: Scope = Scope.TASK) -> None:
    for id_ in ids:
        await stage.transitions.task(id_, c.Unpark(scope=scope, by="ann"))


def said_of_parked(notice: Notice) -> tuple[str, int] | None:
    """What a notice says of parked tasks: what is new, and how many there are."""
    parked = notice.parked
    return (parked.news.value, parked.found.at_least) if parked else None


def parked_in(notice: Notice) -> Pile:
    assert notice.parked is not None
    return notice.parked.found
