"""Between the sweeper's look at a lease and its word, leases move on: those that did stay."""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core import commands as c
from longshore.core import task as tasks
from longshore.core.changes import Change
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import (
    BACKENDS,
    LEASE,
    SECOND,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

TICK = timedelta(milliseconds=1)
A = task_id("a")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["task", "commit"])
@scenario
async def test_a_lease_that_is_renewed_while_the_sweeper_looks_stays(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        held = await stage.claim(A)
        # Sent in time, and long on its way.
        stage.clock.advance(LEASE.lasts - TICK)
        renew = c.Renew(fence=held.fence, lasts=LEASE.lasts)
        renewal = tasks.apply(held, renew, now=stage.clock.now(), change_id="under-way")
        assert isinstance(renewal, Change)
        stage.clock.advance(TICK + LEASE.skew_margin)

        async def it_arrives() -> None:
            await backend.ledger.commit(renewal)

        ledger = Interposed(backend.ledger, method, before=it_arrives)
        repairs = await stage.with_ports(ledger=ledger).sweeper.sweep()

        assert ledger.calls > 0
        assert not repairs
        assert await stage.task("a") == renewal.row


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["task", "commit"])
@scenario
async def test_a_task_of_a_dead_worker_that_another_takes_while_the_sweeper_looks_is_the_other_s(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        await stage.claim(A, "dead")
        stage.presence.dies("dead")
        stage.clock.advance(SECOND)

        async def another_takes_it() -> None:
            await stage.lost("a")
            await stage.claim(A, "alive")

        ledger = Interposed(backend.ledger, method, before=another_takes_it)
        repairs = await stage.with_ports(ledger=ledger).sweeper.sweep()

        lease = (await stage.task("a")).lease
        assert ledger.calls > 0
        assert not repairs
        assert lease is not None
        assert lease.worker_id == "alive"
