"""While an attempt runs its lease is renewed, and each renewal tells how the attempt is doing."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.events.codec import properties_of
from longshore.core.events.event import Event
from longshore.core.events.types import Activity
from longshore.core.lease import LeasePolicy
from longshore.core.states import TaskState
from longshore.ports.queue import Depth
from longshore.ports.runner import Active
from longshore.testing.runner import FakeChild, Script, succeeds
from tests.unit.services.ports import Interposed, recorded
from tests.unit.services.samples import HANGS, MINUTE
from tests.unit.services.stage import (
    BACKENDS,
    LEASE,
    SECOND,
    Stage,
    a_task,
    opened,
    scenario,
)

BEAT = "Task Heartbeat"
QUICK = LeasePolicy(
    renew_every=timedelta(seconds=4),
    extend_by=timedelta(seconds=10),
    kill_grace=timedelta(seconds=1),
    skew_margin=SECOND,
)


async def beats(stage: Stage, key: str = "a") -> list[Event]:
    return [event for event in await stage.history(key) if event.type == BEAT]


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("doing", ["step_running", "sdk_query", "waiting"])
@scenario
async def test_a_heartbeat_tells_its_number_the_time_who_runs_it_its_memory_and_what_it_does(
    kind: str, doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeChild, "rss_bytes", lambda _: 256_000_000)
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        began = stage.clock.now()
        activity = Activity(type=doing, step_name="colour tags", timestamp=began)
        stage.runner.plays("a", Script(says=[Active(activity)], ending=None))
        await stage.submit(a_task())

        async with stage.working("worker-7"):
            await stage.passes(timedelta(seconds=59))

        process_id = stage.runner.children[0].process_id
        for number, beat in enumerate(await beats(stage), start=1):
            told = properties_of(beat)
            assert told["heartbeatNumber"] == number
            assert told["elapsedMs"] == number * 20_000
            assert (told["workerId"], told["processId"]) == ("worker-7", process_id)
            assert told["memoryUsage"] == {"rss": 256_000_000}
            assert told["lastActivity"]["type"] == doing
            assert told["lastActivity"]["stepName"] == "colour tags"
        assert number == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_end_of_the_lease_is_one_and_a_half_extensions_ahead_and_told_in_milliseconds(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async with stage.working():
            for number in (1, 2, 3):
                await stage.passes(LEASE.renew_every)
                beat, lease = (await beats(stage))[-1], (await stage.task("a")).lease
                ahead = stage.clock.now() + timedelta(seconds=45)
                assert lease is not None
                assert (lease.heartbeats, lease.expires_at) == (number, ahead)
                until_ms = properties_of(beat)["effectiveUntil"]
                assert until_ms == round(ahead.timestamp() * 1000)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_how_often_a_lease_is_renewed_and_how_far_ahead_can_be_set(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        stage = Stage(watched)
        stage.runner.plays("a", HANGS)
        await stage.submit(a_task())

        async with stage.working(tools={"lease": QUICK}):
            await stage.passes(timedelta(seconds=21))
            lease = (await stage.task("a")).lease
            last_sent = stage.clock.now() - SECOND
            depth = await backend.queue.depth("default")

        assert lease is not None
        assert (lease.heartbeats, lease.expires_at) == (5, last_sent + timedelta(seconds=15))
        assert depth == Depth(ready=0, hidden=1, dead=0)
        # Had it been seen again by anybody, it would have been put off.
        assert "queue.put_off" not in calls


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_messages_of_all_that_runs_are_extended_by_one_call(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        watched, calls = recorded(backend)
        stage = Stage(watched)
        for key in "abc":
            stage.runner.plays(key, HANGS)
        await stage.submit(*(a_task(key) for key in "abc"))

        async with stage.working():
            await stage.passes(MINUTE + SECOND)
            depth = await backend.queue.depth("default")

        assert calls.count("queue.extend") == 3
        assert depth == Depth(ready=0, hidden=3, dead=0)
        assert [len(await beats(stage, key)) for key in "abc"] == [3, 3, 3]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_renewal_that_is_overtaken_by_the_outcome_changes_nothing(
    kind: str, tmp_path: Path
) -> None:
    async with opened(kind, tmp_path) as backend:
        stage = Stage(backend)
        stage.runner.plays("a", Script(says=[timedelta(seconds=21)], ending=succeeds("done")))
        await stage.submit(a_task())
        ended = asyncio.Event()

        async def note() -> None:
            ended.set()

        # What reaches the store is the claim and the outcome, and then the renewal that was held.
        reached = Interposed(backend.ledger, "commit", after=note, at=2)
        ledger = Interposed(reached, "commit", before=ended.wait, at=2)
        async with stage.with_ports(ledger=ledger).working() as worker:
            await stage.passes(timedelta(seconds=20, milliseconds=1))
            held, told = ledger.calls, reached.calls
            await stage.passes(MINUTE)
            running = worker.running

        row = await stage.task("a")
        assert (held, told) == (2, 1)
        assert (row.state, row.lease, running) == (TaskState.COMPLETED, None, [])
        assert (await stage.told("a"))[-1] == "Task Completed"
        assert await beats(stage) == []
        assert await backend.queue.depth("default") == Depth(ready=0, hidden=0, dead=0)
