"""A worker keeps its leases, and where it cannot, its children are dead before they end."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.definitions.definition import Definition, RunnerKind
from longshore.core.queues import QueueDepth
from longshore.core.tasks import commands as c
from longshore.core.tasks.rows import TaskRow
from longshore.core.tasks.states import TaskState
from longshore.ports.backend import Backend
from longshore.services.worker.context import to_ns
from longshore.services.worker.output import AttemptReports, OutputPump
from longshore.testing.fake_runner import Script, succeeds
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.dead_messages import lose_messages
from tests.unit.services.harness import (
    BACKENDS,
    DIRECT,
    LEASE,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort, record_calls
from tests.unit.services.samples import HANGS, MINUTE, STUBBORN


def end_of_lease(harness: ServiceHarness, row: TaskRow) -> timedelta:
    """When the lease of a row ends, on the clock's ``elapsed``."""
    assert row.lease is not None
    return harness.clock.elapsed() + (row.lease.expires_at - harness.clock.now())


def flaky_renewals(backend: Backend) -> tuple[dict[str, FlakyPort], FlakyPort]:
    """The port through which a worker renews its leases and reports outcomes, which can fail."""
    if backend.source is None:
        port = FlakyPort(backend.ledger, "commit", times=0)
        return {"ledger": port}, port
    port = FlakyPort(backend.source, "turn", times=0)
    return {"source": port}, port


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_running_attempt_renews_its_lease_and_keeps_its_message_hidden(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched)
        harness.runner.set_scripts("a", HANGS)
        harness.runner.set_scripts("b", HANGS)
        await harness.submit(make_task("a"), make_task("b"))

        async with harness.running_worker(), harness.running_worker("worker-2"):
            for _ in range(16):
                await harness.advance(timedelta(seconds=15))
                row = await harness.task("a")
                assert row.lease is not None
                assert row.lease.is_live(harness.clock.now())
            depth = await harness.source.depth("default")
            # A worker that received one again would have postponed it.
            assert "queue.delay" not in calls

        assert len(harness.runner.specs) == 2
        assert depth == QueueDepth(ready=0, hidden=2, dead_letters=0)
        assert row.lease.heartbeats == 12
        assert (await harness.event_types("a")).count("Task Heartbeat") == 12


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_that_lost_its_lease_kills_the_child_and_reports_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async with harness.running_worker() as worker:
            await harness.advance(SECOND)
            await harness.end_lease("a")
            taken = await harness.claim(task_id("a"), "worker-2")
            notices = await harness.event_types("a")
            await harness.advance(LEASE.renew_every)
            running = worker.running

        assert running == []
        assert harness.runner.alive == []
        assert await harness.task("a") == taken
        assert await harness.event_types("a") == notices
        assert len(harness.runner.specs) == 1


@pytest.mark.parametrize("kind", DIRECT)
@scenario
async def test_a_worker_whose_leases_were_ended_kills_its_children_and_joins_again(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for key in ("a", "b"):
            harness.runner.set_scripts(key, HANGS, Script(reports=[MINUTE]))
        await harness.submit(make_task("a"), make_task("b"))

        async with harness.running_worker():
            await harness.advance(SECOND)
            ended = await harness.source.end_worker("worker-1")
            await harness.advance(SECOND)
            alive = sorted(harness.runner.alive)
            attempts = sorted(spec.attempt for spec in harness.runner.specs)
            await harness.advance(MINUTE)

        assert {row.spec.key for row in ended} == {"a", "b"}
        assert alive == ["a", "b"]
        assert attempts == [1, 1, 2, 2]
        for key in ("a", "b"):
            assert (await harness.task(key)).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", DIRECT)
@scenario
async def test_an_outcome_counts_although_another_lease_of_its_worker_was_ended(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS, Script())
        harness.runner.set_scripts("b", Script(reports=[5 * SECOND]))
        await harness.submit(make_task("a"), make_task("b"))

        async with harness.running_worker(concurrency=2):  # no claim waits
            await harness.advance(SECOND)
            await harness.end_lease("a")
            await harness.advance(MINUTE)

        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert (await harness.task("b")).state is TaskState.COMPLETED
        assert (await harness.task("b")).attempt == 1


# In SQLite a send voids the receipt of the message in hand: that cannot be deleted any more.
@pytest.mark.parametrize("kind", WITH_QUEUE[:1])
@scenario
async def test_a_worker_that_lost_its_lease_leaves_the_message_to_the_next_worker(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS, Script())
        await harness.submit(make_task())

        async with harness.running_worker(concurrency=1):
            await harness.advance(SECOND)
            await harness.end_lease("a")
            # The message for its end is lost on its way: there is only the message that is in hand.
            await lose_messages(harness)
            await harness.claim(task_id("a"), "worker-2")
            await harness.advance(LEASE.renew_every)
            alive = harness.runner.alive
            # The other worker never acts again, and no sweeper runs.
            await harness.advance(MINUTE)

        assert alive == []
        assert [spec.attempt for spec in harness.runner.specs] == [1, 3]
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_whose_worker_could_not_renew_comes_to_another_by_its_message(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS, Script())
        ledger = FlakyPort(backend.ledger, "commit", times=None, skip=1)
        await harness.submit(make_task())

        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(LEASE.duration)
            alive = harness.runner.alive
        async with harness.running_worker("worker-2"):
            await harness.advance(MINUTE)

        assert alive == []
        assert [spec.attempt for spec in harness.runner.specs] == [1, 2]
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_an_outcome_under_an_old_fence_changes_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts(
            "a", Script(reports=[timedelta(seconds=3)], ending=succeeds("stale"))
        )
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            await harness.end_lease("a")
            taken = await harness.claim(task_id("a"), "worker-2")
            await harness.advance(timedelta(seconds=5))

            assert harness.runner.alive == []
            assert await harness.task("a") == taken


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("script", [HANGS, STUBBORN], ids=["obeys", "ignores"])
@pytest.mark.parametrize("renewals", [0, 2])
@scenario
async def test_a_worker_that_cannot_renew_kills_the_child_before_the_lease_ends(
    kind: str, script: Script, renewals: int, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", script)
        ports, renewing = flaky_renewals(backend)
        await harness.submit(make_task())

        async with harness.with_ports(**ports).running_worker():
            await harness.advance(SECOND + renewals * LEASE.renew_every)
            claimed = await harness.task("a")
            lease_ends = end_of_lease(harness, claimed)
            renewing.fail_always()
            await harness.advance(MINUTE)
            renewing.recover()
            await harness.advance(SECOND)

            (child,) = harness.runner.children
            assert claimed.lease is not None
            assert claimed.lease.heartbeats == renewals
            assert child.ended_at is not None
            assert child.ended_at <= lease_ends - LEASE.skew_margin
            # Should the worker be stopped, the reaper kills it then.
            assert child.deadline_ns == to_ns(lease_ends - LEASE.skew_margin)
            assert await harness.task("a") == claimed


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_worker_fences_itself_as_early_when_the_time_of_day_was_set_back(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        ports, renewing = flaky_renewals(backend)
        await harness.submit(make_task())

        async with harness.with_ports(**ports).running_worker():
            await harness.advance(SECOND)
            renewing.fail_always()
            harness.clock.set(harness.clock.now() - timedelta(hours=1))
            await harness.advance(MINUTE)
            renewing.recover()

            (child,) = harness.runner.children
            assert child.ended_at == LEASE.duration - LEASE.kill_grace - LEASE.skew_margin


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("slow", [1, 2], ids=["claim", "renewal"])
@scenario
async def test_a_lease_is_trusted_from_when_it_was_asked_for_however_late_the_answer_comes(
    kind: str, slow: int, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", STUBBORN)
        await harness.submit(make_task())

        async def the_answer_takes_its_time() -> None:
            await harness.clock.sleep(10 * SECOND)

        # The slow one is the last that is written: from then on the child's time runs out.
        if backend.source is None:
            written = FlakyPort(backend.ledger, "commit", times=None, skip=slow)
            late = InterposedPort(written, "commit", after=the_answer_takes_its_time, at=slow)
            worker_harness = harness.with_ports(ledger=late)
        else:
            written = FlakyPort(backend.source, "turn", times=None, skip=slow - 1)
            method = "claim" if slow == 1 else "turn"
            late = InterposedPort(written, method, after=the_answer_takes_its_time)
            worker_harness = harness.with_ports(source=late)
        async with worker_harness.running_worker():
            await harness.advance(2 * MINUTE)
            claimed = await harness.task("a")
            lease_ends = end_of_lease(harness, claimed)

            (child,) = harness.runner.children
            assert claimed.lease is not None
            assert claimed.lease.heartbeats == slow - 1
            assert child.ended_at == lease_ends - LEASE.skew_margin


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_short_outage_costs_nothing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[timedelta(minutes=2)]))
        ports, renewing = flaky_renewals(backend)
        await harness.submit(make_task())

        async with harness.with_ports(**ports).running_worker():
            await harness.advance(timedelta(seconds=19))
            renewing.fail_always()
            await harness.advance(timedelta(seconds=15))
            renewing.recover()
            await harness.advance(timedelta(minutes=2))

        assert renewing.failures > 6
        assert len(harness.runner.specs) == 1
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert (await harness.task("a")).attempt == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_queue_that_cannot_extend_does_not_stop_the_renewals(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[timedelta(minutes=3)]))
        queue = FlakyPort(backend.queue, "extend", times=None)
        await harness.submit(make_task())

        async with harness.with_ports(queue=queue).running_worker():
            await harness.advance(timedelta(minutes=4))

        assert queue.failures > 5
        assert len(harness.runner.specs) == 1
        assert (await harness.task("a")).state is TaskState.COMPLETED
        assert (await harness.source.depth("default")).ready == 0


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_bug_in_a_renewal_does_not_end_the_renewing(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(reports=[timedelta(minutes=2)]))
        queue = FlakyPort(backend.queue, "extend", ValueError("a bug"), times=1)
        await harness.submit(make_task())

        async with harness.with_ports(queue=queue).running_worker():
            await harness.advance(timedelta(minutes=3))

        assert queue.failures == 1
        assert (await harness.task("a")).state is TaskState.COMPLETED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancellation_is_noticed_by_the_next_renewal_without_a_wake_up(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())
        deaf = FlakyPort(backend.ledger, "wait_for_wake", times=None)

        async with harness.with_ports(ledger=deaf).running_worker():
            await harness.advance(SECOND)
            await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))
            await harness.advance(SECOND)
            before = (await harness.task("a")).state
            await harness.advance(LEASE.renew_every)

            assert deaf.failures > 1
            assert before is TaskState.PROCESSING
            assert (await harness.task("a")).state is TaskState.CANCELLED


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_is_known_of_the_row_never_goes_back(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.claim(task_id("a"))
        saved = await harness.transitions.apply_to_task(
            task_id("a"), c.SaveCheckpoint(fence=claimed.fence, key="step")
        )
        pump = OutputPump(harness.worker_context(), task_id("a"), 1)
        reports = AttemptReports(pump, claimed)

        reports.update_row(saved)
        reports.update_row(claimed)

        assert reports.row == saved


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_no_child_is_started_when_the_lease_ran_out_on_the_way_to_it(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await backend.definitions.put(
            TENANT, Definition(name="own", runner=RunnerKind.COMMAND, overridable=("argv",))
        )
        await harness.submit(make_task(name="own"))

        async def stand_still() -> None:
            harness.clock.advance(2 * LEASE.duration)

        slow = InterposedPort(backend.definitions, "get", before=stand_still)
        worker = harness.with_ports(definitions=slow).worker()
        running = asyncio.ensure_future(worker.run())
        await harness.advance(5 * MINUTE)
        if backend.source is not None:
            assert harness.runner.specs == []
            await harness.end_lease("a")  # there is no message: the sweeper does it
            await harness.advance(SECOND)
        worker.stop()
        await running

        assert [spec.attempt for spec in harness.runner.specs] == [2]
        assert (await harness.task("a")).state is TaskState.COMPLETED
