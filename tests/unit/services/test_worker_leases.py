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
from longshore.testing.runner import Script, succeeds
from tests.unit.services.dead import lose_messages
from tests.unit.services.ports import Interposed, recorded
from tests.unit.services.samples import HANGS, MINUTE, STUBBORN
from tests.unit.services.stage import (
    BACKENDS,
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


def end_of_lease(stage: Stage, row: TaskRow) -> timedelta:
    """When the lease of a row ends, on the clock's ``elapsed``."""
    assert row.lease is not None
    return stage.clock.elapsed() + (row.lease.expires_at - stage.clock.now())


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_runs_is_renewed_and_its_message_kept_hidden(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        stage = Stage(watched)
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
            # Had one been seen again by anybody, it would have been put off.
            assert "queue.put_off" not in calls

        assert len(stage.runner.orders) == 2
        assert depth == Depth(ready=0, hidden=2, dead=0)
        assert row.lease.heartbeats == 12
        assert (await stage.told("a")).count("Task Heartbeat") == 12


@pytest.mark.parametrize("kind", BACKENDS)
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
            await stage.lost("a")
            taken = await stage.claim(task_id("a"), "worker-2")
            told = await stage.told("a")
            await stage.passes(LEASE.renew_every)
            running = worker.running

        assert running == []
        assert stage.runner.alive == []
        assert await stage.task("a") == taken
        assert await stage.told("a") == told
        assert len(stage.runner.orders) == 1


# In SQLite a ring makes the receipt of the message in hand void: that cannot be deleted any more.
@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_worker_that_lost_its_lease_leaves_the_message_to_whoever_is_next(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS, Script())
        await stage.submit(a_task())

        async with stage.working(concurrency=1):
            await stage.passes(SECOND)
            await stage.lost("a")
            # The ring for its end is lost on its way: there is only the message that is in hand.
            await lose_messages(stage)
            await stage.claim(task_id("a"), "worker-2")
            await stage.passes(LEASE.renew_every)
            alive = stage.runner.alive
            # The other one is never heard of again, and nobody sweeps.
            await stage.passes(MINUTE)

        assert alive == []
        assert [order.attempt for order in stage.runner.orders] == [1, 3]
        assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_whose_worker_could_not_renew_comes_to_another_by_its_message(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS, Script())
        ledger = Flaky(backend.ledger, "commit", times=None, skip=1)
        await stage.submit(a_task())

        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(LEASE.lasts)
            alive = stage.runner.alive
        async with stage.working("worker-2"):
            await stage.passes(MINUTE)

        assert alive == []
        assert [order.attempt for order in stage.runner.orders] == [1, 2]
        assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_under_an_old_fence_changes_nothing(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(seconds=3)], ending=succeeds("stale")))
        await stage.submit(a_task())

        async with stage.working():
            await stage.passes(SECOND)
            await stage.lost("a")
            taken = await stage.claim(task_id("a"), "worker-2")
            await stage.passes(timedelta(seconds=5))

            assert stage.runner.alive == []
            assert await stage.task("a") == taken


@pytest.mark.parametrize("kind", BACKENDS)
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_fences_itself_as_early_when_the_time_of_day_was_set_back(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        ledger = Flaky(backend.ledger, "commit", times=0)
        await stage.submit(a_task())

        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(SECOND)
            ledger.breaks()
            stage.clock.set(stage.clock.now() - timedelta(hours=1))
            await stage.passes(MINUTE)
            ledger.mend()

            (child,) = stage.runner.children
            assert child.ended_at == LEASE.lasts - LEASE.kill_grace - LEASE.skew_margin


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("slow", [1, 2], ids=["claim", "renewal"])
@scenario
async def test_a_lease_is_trusted_from_when_it_was_asked_for_however_late_the_answer_comes(
    kind: str, slow: int, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", STUBBORN)
        await stage.submit(a_task())

        async def the_answer_takes_its_time() -> None:
            await stage.clock.sleep(10 * SECOND)

        # The slow one is the last that is written: from then on the child's time runs out.
        written = Flaky(backend.ledger, "commit", times=None, skip=slow)
        ledger = Interposed(written, "commit", after=the_answer_takes_its_time, at=slow)
        async with stage.with_ports(ledger=ledger).working():
            await stage.passes(2 * MINUTE)
            held = await stage.task("a")
            lease_ends = end_of_lease(stage, held)

            (child,) = stage.runner.children
            assert held.lease is not None
            assert held.lease.heartbeats == slow - 1
            assert child.ended_at == lease_ends - LEASE.skew_margin


@pytest.mark.parametrize("kind", BACKENDS)
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_queue_that_cannot_extend_does_not_stop_the_renewals(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_bug_in_a_renewal_does_not_end_the_renewing(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(minutes=2)]))
        queue = Flaky(backend.queue, "extend", ValueError("a bug"), times=1)
        await stage.submit(a_task())

        async with stage.with_ports(queue=queue).working():
            await stage.passes(timedelta(minutes=3))

        assert queue.failures == 1
        assert (await stage.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancellation_is_noticed_by_the_next_renewal_if_no_nudge_comes(
    kind: str,
    tmp_path: Path,
) -> None:
    async with opened(kind, tmp_path) as backend:
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_known_of_the_row_never_goes_back(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_only_a_claimed_task_can_be_attempted(kind: str, tmp_path: Path) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        with pytest.raises(UsageError):
            Attempt(stage.tools(), await stage.task("a"), NO_WAIT)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_child_is_started_when_the_lease_ran_out_on_the_way_to_it(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        await stage.submit(a_task())

        async def stand_still() -> None:
            stage.clock.advance(2 * LEASE.lasts)

        slow = Interposed(backend.ledger, "tasks", before=stand_still)
        worker = stage.with_ports(ledger=slow).worker()
        running = asyncio.ensure_future(worker.run())
        await stage.passes(5 * MINUTE)
        worker.stop()
        await running

        assert [order.attempt for order in stage.runner.orders] == [2]
        assert (await stage.task("a")).state is TaskState.COMPLETED
