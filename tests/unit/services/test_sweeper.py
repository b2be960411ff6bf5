"""The sweeper finds what crashes left behind from rows alone, repairs it once, and nothing else."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.services.sweeper import Repairs
from longshore.services.worker.attempts import slot_task_number
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.dead_messages import lose_messages
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
TAKEN_OVER_AFTER = LEASE.duration + LEASE.skew_margin
REENQUEUED_AFTER = timedelta(seconds=60)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_lease_is_ended_once_its_end_and_the_clocks_error_have_passed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.claim(task_id("a"))

        harness.clock.advance(TAKEN_OVER_AFTER - TICK)
        early = await harness.sweeper.sweep()
        untouched = await harness.task("a")
        harness.clock.advance(TICK)
        repairs = await harness.sweeper.sweep()

        assert not early
        assert untouched == claimed
        assert repairs == Repairs(leases_ended=1)
        row = await harness.task("a")
        assert row.state is TaskState.PENDING
        assert row.lease is None
        assert row.due_at == harness.clock.now()
        assert (await harness.event_types("a"))[-1] == "Task Processing Failed"
        assert len(await harness.messages()) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_silent_worker_uses_up_an_attempt_and_the_last_one_fails_the_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(maxAttempts=2))
        for _ in range(2):
            await harness.claim(task_id("a"))
            harness.clock.advance(TAKEN_OVER_AFTER)
            await harness.sweeper.sweep()

        row = await harness.task("a")
        last = (await harness.history("a"))[-1]
        assert row.state is TaskState.FAILED
        assert row.attempts_used == 2
        assert last.type == "Task Failed"
        assert last.body.source == "sweeper"
        assert last.body.retry_count == 2


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_cancelled_task_of_a_silent_worker_ends_as_cancelled(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"))
        await harness.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        harness.clock.advance(TAKEN_OVER_AFTER)
        await harness.sweeper.sweep()

        assert (await harness.task("a")).state is TaskState.CANCELLED


class RecordingLedger:
    """A ledger that notes its commits where the presence notes its calls."""

    def __init__(self, ledger: Any, calls: list[tuple[str, str]]) -> None:
        self._ledger = ledger
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def commit(self, *changes: Any) -> Any:
        self._calls += [("commit", change.row.id) for change in changes]
        return await self._ledger.commit(*changes)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_the_leases_of_a_dead_worker_end_at_once_after_its_children_were_killed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"), make_task("c"))
        await harness.claim(task_id("a"), "dead")
        await harness.claim(task_id("b"), "dead")
        others = await harness.claim(task_id("c"), "alive")
        calls = harness.worker_registry.calls
        harness.worker_registry.kill("dead")
        watched = harness.with_ports(ledger=RecordingLedger(backend.ledger, calls))

        repairs = await watched.sweeper.sweep()

        assert repairs == Repairs(leases_ended=2)
        assert calls[0] == ("reap", "dead")
        assert sorted(calls[1:3]) == [("commit", task_id("a")), ("commit", task_id("b"))]
        assert calls[3:] == [("deregister", "dead")]
        states = await harness.states()
        assert (states["a"], states["b"]) == (TaskState.PENDING, TaskState.PENDING)
        assert await harness.task("c") == others
        assert harness.worker_registry.dead_workers() == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_a_dead_worker_had_not_begun_in_its_slots_uses_no_attempt(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        in_slots = ("begun", "begun-before", "not-begun")
        tasks = [make_task(key, name="python", input={"function": "os:getpid"}) for key in in_slots]
        # What runs in no slot is not in the record.
        await harness.submit(*tasks, make_task("command"))
        rows = {key: await harness.claim(task_id(key), "dead") for key in await harness.states()}
        harness.worker_registry.kill("dead")
        harness.worker_registry.begun["dead"] = {
            (slot_task_number(task_id("begun")), rows["begun"].fence),
            (slot_task_number(task_id("begun-before")), rows["begun-before"].fence - 1),
        }

        await harness.sweeper.reap_dead_workers()

        used = {key: (await harness.task(key)).attempts_used for key in rows}
        assert used == {"begun": 1, "begun-before": 0, "not-begun": 0, "command": 1}
        assert "dead" not in harness.worker_registry.begun


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_lease_of_another_machine_does_not_end_because_its_worker_is_not_registered_here(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claim = c.Claim(worker_id="w", process_id=1, lease_duration=LEASE.duration, local=False)
        claimed = await harness.transitions.apply_to_task(task_id("a"), claim)
        harness.worker_registry.kill("w")

        repairs = await harness.sweeper.sweep()

        assert not repairs
        assert await harness.task("a") == claimed


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_dead_worker_is_kept_in_mind_until_its_leases_have_been_ended(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"), "dead")
        harness.worker_registry.kill("dead")
        ledger = FlakyPort(backend.ledger, "commit", times=None)

        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(
                harness.with_ports(ledger=ledger).sweeper.reap_dead_workers()
            )
        remembered = harness.worker_registry.dead_workers()
        await harness.sweeper.reap_dead_workers()

        assert remembered == ["dead"]
        assert harness.worker_registry.dead_workers() == []
        assert (await harness.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_due_task_that_was_not_claimed_is_enqueued_again_later(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await lose_messages(harness)

        harness.clock.advance(REENQUEUED_AFTER)
        early = await harness.sweeper.sweep()
        harness.clock.advance(TICK)
        repairs = await harness.sweeper.sweep()
        again = await harness.sweeper.sweep()

        assert not early
        assert repairs == Repairs(reenqueued=1)
        assert not again
        assert len(await harness.messages()) == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_delayed_task_is_not_enqueued_before_it_is_due(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(delay=3600))

        harness.clock.advance(timedelta(seconds=3599))
        early = await harness.sweeper.sweep()
        harness.clock.advance(SECOND)
        await lose_messages(harness)
        repairs = await harness.sweeper.sweep()

        assert not early
        assert repairs["reenqueued"] == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_healthy_tasks_are_left_alone(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        keys = ("done", "waiting", "cancelled", "running")
        await harness.submit(
            make_task("done"),
            make_task("waiting", "running"),
            make_task("cancelled"),
            make_task("running"),
        )
        await harness.complete(task_id("done"))
        await harness.transitions.apply_to_task(task_id("cancelled"), c.RequestCancel(by="ann"))
        await harness.dispatch()
        harness.clock.advance(timedelta(hours=1))
        await harness.claim(task_id("running"))
        harness.clock.advance(LEASE.duration)
        before = [await harness.task(key) for key in keys]

        repairs = await harness.sweeper.sweep()

        assert not repairs
        assert [await harness.task(key) for key in keys] == before


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["leased_tasks", "get_task", "commit"])
@scenario
async def test_two_sweepers_at_once_end_a_lease_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"))
        harness.clock.advance(TAKEN_OVER_AFTER)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        item = harness.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        assert item.sweeper.repairs["leases_ended"] + other.sweeper.repairs["leases_ended"] == 1
        assert (await harness.event_types("a")).count("Task Processing Failed") == 1
        assert (await harness.task("a")).attempts_used == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("method", ["unqueued_tasks", "get_task", "commit"])
@scenario
async def test_two_concurrent_sweepers_enqueue_a_task_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness, other = ServiceHarness(backend), ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.sweeper.sweep()  # it finishes the submit, which reads and commits too
        await lose_messages(harness)
        harness.clock.advance(2 * REENQUEUED_AFTER)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        item = harness.with_ports(ledger=ledger)

        await item.sweeper.sweep()

        assert item.sweeper.repairs["reenqueued"] + other.sweeper.repairs["reenqueued"] == 1
        assert len(await harness.messages()) == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@pytest.mark.parametrize("method", ["get_task", "commit"])
@scenario
async def test_a_task_that_is_claimed_during_the_sweep_is_not_enqueued(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.sweeper.sweep()  # it finishes the submit, which reads and commits too
        await lose_messages(harness)
        harness.clock.advance(2 * REENQUEUED_AFTER)

        async def other_worker_claims() -> None:
            await harness.claim(task_id("a"))

        ledger = InterposedPort(backend.ledger, method, before=other_worker_claims)
        repairs = await harness.with_ports(ledger=ledger).sweeper.sweep()

        assert not repairs
        assert (await harness.task("a")).state is TaskState.PROCESSING


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_one_sweep_repairs_everything_however_much_it_is(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        keys = [f"t{number}" for number in range(1_200)]
        await harness.submit(*(make_task(key) for key in keys))
        for key in keys[:600]:
            await harness.claim(task_id(key))
        await lose_messages(harness)
        harness.clock.advance(2 * REENQUEUED_AFTER)

        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(leases_ended=600, reenqueued=600)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_dead_worker_is_noticed_at_once_and_a_silent_one_when_its_lease_is_over(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        running = asyncio.ensure_future(harness.sweeper.run())
        await harness.advance(SECOND)
        await harness.claim(task_id("a"), "dead")
        await harness.claim(task_id("b"), "silent")

        harness.worker_registry.kill("dead")
        await harness.advance(SECOND)
        soon = await harness.states()
        await harness.advance(TAKEN_OVER_AFTER - 2 * SECOND)
        before_its_end = await harness.states()
        await harness.advance(SECOND)
        later = await harness.states()

        assert soon == {"a": TaskState.PENDING, "b": TaskState.PROCESSING}
        assert before_its_end["b"] is TaskState.PROCESSING
        assert later["b"] is TaskState.PENDING
        assert harness.sweeper.repairs["leases_ended"] == 2
        running.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_sweeper_continues_after_the_store_was_out_of_reach(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"))
        ledger = FlakyPort(backend.ledger, "leased_tasks", times=5)
        running = asyncio.ensure_future(harness.with_ports(ledger=ledger).sweeper.run())

        await harness.advance(timedelta(minutes=3))

        assert ledger.failures == 5
        assert (await harness.task("a")).state is TaskState.PENDING
        running.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_repairs_are_counted_over_all_sweeps(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"))
        for key in "ab":
            await harness.claim(task_id(key))
            harness.clock.advance(TAKEN_OVER_AFTER)
            await harness.sweeper.sweep()

        assert harness.sweeper.repairs["leases_ended"] == 2
