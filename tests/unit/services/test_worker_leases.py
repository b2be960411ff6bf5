"""A worker keeps its leases, and where it cannot, its children are dead before they end."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core import commands as c
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import UsageError
from longshore.ports.queue import Depth
from longshore.services.worker.attempt import Attempt
from longshore.testing.flaky import Flaky
from longshore.testing.runner import Script, prints, succeeds
from tests.unit.services.ports import Interposed
from tests.unit.services.stage import (
    IN_MEMORY,
    LEASE,
    NO_WAIT,
    SECOND,
    Stage,
    a_task,
    opened,
    scenario,
    task_id,
)

HANGS = Script(ending=None)
STUBBORN = Script(ending=None, ignores_sigterm=True)
MINUTE = timedelta(minutes=1)


def end_of_lease(stage: Stage, row: TaskRow) -> timedelta:
    """When the lease of a row ends, on the clock's ``elapsed``."""
    assert row.lease is not None
    return stage.clock.elapsed() + (row.lease.expires_at - stage.clock.now())


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_what_runs_is_renewed_and_its_message_kept_hidden(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        stage.runner.plays("b", HANGS)
        await stage.submit(a_task("a"), a_task("b"))

        async with stage.working(), stage.working("worker-2"):
            for _ in range(16):
                await stage.passes(timedelta(seconds=15))
                row = await stage.task("a")
                assert row.lease is not None
                assert row.lease.live(stage.clock.now())
            depth = await backend.queue.depth("default")

        assert len(stage.runner.orders) == 2
        assert depth == Depth(ready=0, hidden=2, dead=0)
        assert row.lease.heartbeats == 12
        assert (await stage.told("a")).count("Task Heartbeat") == 12


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_worker_whose_lease_went_to_another_kills_the_child_and_says_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async with stage.working() as worker:
            await stage.passes(SECOND)
            held = await stage.task("a")
            gone = c.LeaseEnded(fence=held.fence, margin=LEASE.skew_margin, holder_gone=True)
            await stage.transitions.task(task_id("a"), gone)
            taken = await stage.claim(task_id("a"), "worker-2")
            told = await stage.told("a")
            await stage.passes(LEASE.renew_every)
            running = worker.running

        assert running == []
        assert stage.runner.alive == []
        assert await stage.task("a") == taken
        assert await stage.told("a") == told
        assert len(stage.runner.orders) == 1


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_an_outcome_under_an_old_fence_changes_nothing(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(seconds=3)], ending=succeeds("stale")))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            held = await stage.task("a")
            gone = c.LeaseEnded(fence=held.fence, margin=LEASE.skew_margin, holder_gone=True)
            await stage.transitions.task(task_id("a"), gone)
            taken = await stage.claim(task_id("a"), "worker-2")
            await stage.passes(timedelta(seconds=5))

            assert stage.runner.alive == []
            assert await stage.task("a") == taken


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.parametrize("script", [HANGS, STUBBORN], ids=["obeys", "ignores"])
@pytest.mark.parametrize("renewals", [0, 2])
@scenario
async def test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends(
    kind: str, script: Script, renewals: int, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", script)
        ledger = Flaky(backend.ledger, "commit", times=0)
        await stage.submit(a_task())

        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(SECOND + renewals * LEASE.renew_every)
            held = await stage.task("a")
            lease_ends = end_of_lease(stage, held)
            ledger.breaks()
            await stage.passes(MINUTE)
            ledger.mend()
            await stage.passes(SECOND)

            (child,) = stage.runner.children
            assert held.lease is not None
            assert held.lease.heartbeats == renewals
            assert child.ended_at is not None
            assert child.ended_at <= lease_ends - LEASE.skew_margin
            assert await stage.task("a") == held


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_short_outage_costs_nothing(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(minutes=2)]))
        ledger = Flaky(backend.ledger, "commit", times=0)
        await stage.submit(a_task())

        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(timedelta(seconds=19))
            ledger.breaks()
            await stage.passes(timedelta(seconds=15))
            ledger.mend()
            await stage.passes(timedelta(minutes=2))

        assert ledger.failures > 6
        assert len(stage.runner.orders) == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert (await stage.task("a")).attempt == 1


@scenario
async def test_a_queue_that_cannot_extend_does_not_stop_the_renewals(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(minutes=3)]))
        queue = Flaky(backend.queue, "extend", times=None)
        await stage.submit(a_task())

        async with stage.with_ports(queue=queue).working():
            await stage.passes(timedelta(minutes=4))

        assert queue.failures > 5
        assert len(stage.runner.orders) == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert (await backend.queue.depth("default")).ready == 0


@scenario
async def test_a_bug_in_a_renewal_does_not_end_the_renewing(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(minutes=2)]))
        queue = Flaky(backend.queue, "extend", ValueError("a bug"), times=1)
        await stage.submit(a_task())

        async with stage.with_ports(queue=queue).working():
            await stage.passes(timedelta(minutes=3))

        assert queue.failures == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED


@scenario
async def test_a_cancellation_is_noticed_by_the_next_renewal_if_no_nudge_comes(
    tmp_path: Path,
) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())
        deaf = Flaky(backend.ledger, "nudged", times=None)

        async with stage.with_ports(ledger=deaf).working():
            await stage.passes(SECOND)
            await stage.transitions.task(task_id("a"), c.RequestCancel(by="ann"))
            await stage.passes(SECOND)
            before = (await stage.task("a")).state
            await stage.passes(LEASE.renew_every)

            assert deaf.failures > 1
            assert before is TaskState.PROCESSING
            assert (await stage.task("a")).state is TaskState.CANCELLED


@scenario
async def test_what_is_known_of_the_row_never_goes_back(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())
        began = stage.clock.elapsed()
        claimed = await stage.claim(task_id("a"))
        attempt = Attempt(stage.tools(), claimed, began)
        renewed = await stage.transitions.task(task_id("a"), attempt.renewal())
        saved = await stage.transitions.task(
            task_id("a"), c.SaveCheckpoint(fence=attempt.fence, key="step")
        )

        attempt.renewed(saved, began)
        attempt.renewed(renewed, began)

        assert attempt.row == saved


@scenario
async def test_only_a_claimed_task_can_be_attempted(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        with pytest.raises(UsageError):
            Attempt(stage.tools(), await stage.task("a"), NO_WAIT)


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_stopping_worker_lets_its_attempts_finish_within_the_grace(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(seconds=29)]))
        await stage.submit(a_task("a"), a_task("b", delay=5))
        worker = stage.worker(drain_grace=timedelta(seconds=30))
        running = asyncio.ensure_future(worker.run())
        await stage.passes(SECOND)

        worker.stop()
        await stage.passes(timedelta(seconds=27))
        before = running.done()
        await stage.passes(SECOND)

        assert (before, running.done()) == (False, True)
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert [order.key for order in stage.runner.orders] == ["a"]
        assert stage.presence.calls[-1] == ("leave", "worker-1")


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_what_outlasts_the_grace_is_released_at_once_and_costs_no_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[prints("x")], ending=None), Script())
        await stage.submit(a_task())
        worker = stage.worker(drain_grace=timedelta(seconds=30))
        running = asyncio.ensure_future(worker.run())
        await stage.passes(SECOND)

        worker.stop()
        await stage.passes(timedelta(seconds=29))
        alive = stage.runner.alive
        await stage.passes(SECOND)
        row = await stage.task("a")
        ready = await backend.queue.depth("default")
        async with stage.working("worker-2"):
            await stage.passes(NO_WAIT)

        assert running.done()
        assert alive == ["a"]
        assert row.state is TaskState.PENDING
        assert (row.attempt, row.attempts_used, row.lease) == (1, 0, None)
        assert ready == Depth(ready=1, hidden=0, dead=0)
        history = await stage.history("a")
        (released,) = [event for event in history if event.type == "Task Released"]
        assert released.body.last_output == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED
        assert stage.runner.orders[1].attempt == 2


@scenario
async def test_leases_are_kept_while_a_worker_drains(tmp_path: Path) -> None:
    async with opened("memory", tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(minutes=3)]))
        await stage.submit(a_task())
        worker = stage.worker(drain_grace=timedelta(minutes=10))
        running = asyncio.ensure_future(worker.run())
        await stage.passes(SECOND)

        worker.stop()
        await stage.passes(timedelta(minutes=3))

        assert running.done()
        assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_second_order_to_stop_gives_everything_back_at_once(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())
        worker = stage.worker()
        running = asyncio.ensure_future(worker.run())
        await stage.passes(SECOND)

        worker.stop()
        worker.end_all()
        await stage.passes(NO_WAIT)

        assert running.done()
        assert stage.runner.alive == []
        assert (await stage.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_what_is_being_claimed_when_everything_is_given_back_is_given_back_too(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async def stop_at_once() -> None:
            worker.stop()
            worker.end_all()

        ledger = Interposed(backend.ledger, "commit", after=stop_at_once)
        worker = stage.with_ports(ledger=ledger).worker(drain_grace=timedelta(hours=1))
        running = asyncio.ensure_future(worker.run())
        await stage.passes(SECOND)

        assert running.done()
        assert stage.runner.alive == []
        assert (await stage.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_stopping_worker_claims_nothing_any_more(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        async def stop() -> None:
            worker.stop()

        ledger = Interposed(backend.ledger, "task", after=stop)
        worker = stage.with_ports(ledger=ledger).worker()
        running = asyncio.ensure_future(worker.run())
        await stage.passes(NO_WAIT)

        assert running.done()
        assert stage.runner.orders == []
        assert (await backend.queue.depth("default")).ready == 1
