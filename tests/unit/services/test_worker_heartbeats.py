"""While an attempt runs its lease is renewed, and each renewal reports its progress."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.events.codec import properties_of
from longshore.core.events.event import Event
from longshore.core.events.types import Activity
from longshore.core.queues import QueueDepth
from longshore.core.tasks.lease import LeasePolicy
from longshore.core.tasks.states import TaskState
from longshore.ports.runner import ActivityReport
from longshore.testing.fake_runner import FakeChild, Script, succeeds
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
)
from tests.unit.services.port_wrappers import InterposedPort, record_calls
from tests.unit.services.samples import HANGS, MINUTE

BEAT = "Task Heartbeat"
QUICK = LeasePolicy(
    renew_every=timedelta(seconds=4),
    extend_by=timedelta(seconds=10),
    kill_grace=timedelta(seconds=1),
    skew_margin=SECOND,
)


async def beats(harness: ServiceHarness, key: str = "a") -> list[Event]:
    return [event for event in await harness.history(key) if event.type == BEAT]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("doing", ["step_running", "sdk_query", "waiting"])
@scenario
async def test_a_heartbeat_contains_its_number_time_worker_memory_and_activity(
    kind: str, doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeChild, "rss_bytes", lambda _: 256_000_000)
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        began = harness.clock.now()
        activity = Activity(type=doing, step_name="colour tags", timestamp=began)
        harness.runner.set_scripts("a", Script(reports=[ActivityReport(activity)], ending=None))
        await harness.submit(make_task())

        async with harness.running_worker("worker-7"):
            await harness.advance(timedelta(seconds=59))

        process_id = harness.runner.children[0].process_id
        for number, beat in enumerate(await beats(harness), start=1):
            notices = properties_of(beat)
            assert notices["heartbeatNumber"] == number
            assert notices["elapsedMs"] == number * 20_000
            assert (notices["workerId"], notices["processId"]) == ("worker-7", process_id)
            assert notices["memoryUsage"] == {"rss": 256_000_000}
            assert notices["lastActivity"]["type"] == doing
            assert notices["lastActivity"]["stepName"] == "colour tags"
        assert number == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_lease_ends_one_and_a_half_extensions_ahead_and_is_emitted_in_milliseconds(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async with harness.running_worker():
            for number in (1, 2, 3):
                await harness.advance(LEASE.renew_every)
                beat, lease = (await beats(harness))[-1], (await harness.task("a")).lease
                ahead = harness.clock.now() + timedelta(seconds=45)
                assert lease is not None
                assert (lease.heartbeats, lease.expires_at) == (number, ahead)
                until_ms = properties_of(beat)["effectiveUntil"]
                assert until_ms == round(ahead.timestamp() * 1000)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_how_often_a_lease_is_renewed_and_how_far_ahead_can_be_set(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched)
        harness.runner.set_scripts("a", HANGS)
        await harness.submit(make_task())

        async with harness.running_worker(context={"lease": QUICK}):
            await harness.advance(timedelta(seconds=21))
            lease = (await harness.task("a")).lease
            last_sent = harness.clock.now() - SECOND
            depth = await harness.source.depth("default")

        assert lease is not None
        assert (lease.heartbeats, lease.expires_at) == (5, last_sent + timedelta(seconds=15))
        assert depth == QueueDepth(ready=0, hidden=1, dead_letters=0)
        # A worker that received it again would have postponed it.
        assert "queue.delay" not in calls


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_the_messages_of_all_that_runs_are_extended_by_one_call(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched)
        for key in "abc":
            harness.runner.set_scripts(key, HANGS)
        await harness.submit(*(make_task(key) for key in "abc"))

        async with harness.running_worker():
            await harness.advance(MINUTE + SECOND)
            depth = await harness.source.depth("default")

        assert calls.count("queue.extend") == 3
        assert depth == QueueDepth(ready=0, hidden=3, dead_letters=0)
        assert [len(await beats(harness, key)) for key in "abc"] == [3, 3, 3]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_renewal_that_is_overtaken_by_the_outcome_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts(
            "a", Script(reports=[timedelta(seconds=21)], ending=succeeds("done"))
        )
        await harness.submit(make_task())
        ended = asyncio.Event()

        async def note() -> None:
            ended.set()

        # What reaches the store is the claim and the outcome, and then the renewal that was held.
        reached = InterposedPort(backend.ledger, "commit", after=note, at=2)
        ledger = InterposedPort(reached, "commit", before=ended.wait, at=2)
        async with harness.with_ports(ledger=ledger).running_worker() as worker:
            await harness.advance(timedelta(seconds=20, milliseconds=1))
            claimed, notices = ledger.calls, reached.calls
            await harness.advance(MINUTE)
            running = worker.running

        row = await harness.task("a")
        assert (claimed, notices) == (2, 1)
        assert (row.state, row.lease, running) == (TaskState.COMPLETED, None, [])
        assert (await harness.event_types("a"))[-1] == "Task Completed"
        assert await beats(harness) == []
        assert await harness.source.depth("default") == QueueDepth(
            ready=0, hidden=0, dead_letters=0
        )
