"""Between the sweeper's look at a lease and its word, leases move on: those that did stay."""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks import task as tasks
from longshore.core.tasks.changes import Change
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort

TICK = timedelta(milliseconds=1)
A = task_id("a")


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["get_task", "commit"])
@scenario
async def test_a_lease_that_is_renewed_while_the_sweeper_looks_stays(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.claim(A)
        # Sent in time, and long on its way.
        harness.clock.advance(LEASE.duration - TICK)
        renew = c.Renew(fence=claimed.fence, lease_duration=LEASE.duration)
        renewal = tasks.apply(claimed, renew, now=harness.clock.now(), change_id="under-way")
        assert isinstance(renewal, Change)
        harness.clock.advance(TICK + LEASE.skew_margin)

        async def it_arrives() -> None:
            await backend.ledger.commit(renewal)

        ledger = InterposedPort(backend.ledger, method, before=it_arrives)
        repairs = await harness.with_ports(ledger=ledger).sweeper.sweep()

        assert ledger.calls > 0
        assert not repairs
        assert await harness.task("a") == renewal.row


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("method", ["get_task", "commit"])
@scenario
async def test_a_task_of_a_dead_worker_that_another_takes_while_the_sweeper_looks_is_the_other_s(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(A, "dead")
        harness.worker_registry.kill("dead")
        harness.clock.advance(SECOND)

        async def another_takes_it() -> None:
            await harness.end_lease("a")
            await harness.claim(A, "alive")

        ledger = InterposedPort(backend.ledger, method, before=another_takes_it)
        repairs = await harness.with_ports(ledger=ledger).sweeper.sweep()

        lease = (await harness.task("a")).lease
        assert ledger.calls > 0
        assert not repairs
        assert lease is not None
        assert lease.worker_id == "alive"
