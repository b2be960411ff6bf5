"""What crashes leave behind is found from rows alone, mended once, and the healthy left alone."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.tasks import commands as c
from longshore.core.tasks.states import TaskState
from longshore.errors import BackendUnavailable
from longshore.services.sweeper import Repairs
from longshore.testing.flaky_port import FlakyPort
from tests.unit.services.dead_messages import lose_messages
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    SECOND,
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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_lease_is_ended_once_its_end_and_the_clocks_error_have_passed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        held = await stage.claim(task_id("a"))

        stage.clock.advance(TAKEN_OVER_AFTER - TICK)
        early = await stage.sweeper.sweep()
        untouched = await stage.task("a")
        stage.clock.advance(TICK)
        repairs = await stage.sweeper.sweep()

        assert not early
        assert untouched == held
        assert repairs == Repairs(leases_ended=1)
        row = await stage.task("a")
        assert row.state is TaskState.PENDING
        assert row.lease is None
        assert row.due_at == stage.clock.now()
        assert (await stage.event_types("a"))[-1] == "Task Processing Failed"
        assert len(await stage.messages()) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_silent_worker_uses_up_an_attempt_and_the_last_one_fails_the_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task(maxAttempts=2))
        for _ in range(2):
            await stage.claim(task_id("a"))
            stage.clock.advance(TAKEN_OVER_AFTER)
            await stage.sweeper.sweep()

        row = await stage.task("a")
        last = (await stage.history("a"))[-1]
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
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.claim(task_id("a"))
        await stage.transitions.apply_to_task(task_id("a"), c.RequestCancel(by="ann"))

        stage.clock.advance(TAKEN_OVER_AFTER)
        await stage.sweeper.sweep()

        assert (await stage.task("a")).state is TaskState.CANCELLED


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


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_leases_of_a_dead_worker_end_at_once_after_its_children_were_killed(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b"), make_task("c"))
        await stage.claim(task_id("a"), "dead")
        await stage.claim(task_id("b"), "dead")
        others = await stage.claim(task_id("c"), "alive")
        calls = stage.worker_registry.calls
        stage.worker_registry.kill("dead")
        watched = stage.with_ports(ledger=RecordingLedger(backend.ledger, calls))

        repairs = await watched.sweeper.sweep()

        assert repairs == Repairs(leases_ended=2)
        assert calls[0] == ("reap", "dead")
        assert sorted(calls[1:3]) == [("commit", task_id("a")), ("commit", task_id("b"))]
        assert calls[3:] == [("deregister", "dead")]
        states = await stage.states()
        assert (states["a"], states["b"]) == (TaskState.PENDING, TaskState.PENDING)
        assert await stage.task("c") == others
        assert stage.worker_registry.dead_workers() == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_lease_held_elsewhere_does_not_end_because_a_name_is_missing_here(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        claim = c.Claim(worker_id="w", process_id=1, lease_duration=LEASE.duration, local=False)
        held = await stage.transitions.apply_to_task(task_id("a"), claim)
        stage.worker_registry.kill("w")

        repairs = await stage.sweeper.sweep()

        assert not repairs
        assert await stage.task("a") == held


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_dead_worker_is_kept_in_mind_until_its_leases_have_been_ended(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.claim(task_id("a"), "dead")
        stage.worker_registry.kill("dead")
        ledger = FlakyPort(backend.ledger, "commit", times=None)

        with pytest.raises(BackendUnavailable):
            await stage.advance_until_done(
                stage.with_ports(ledger=ledger).sweeper.reap_dead_workers()
            )
        remembered = stage.worker_registry.dead_workers()
        await stage.sweeper.reap_dead_workers()

        assert remembered == ["dead"]
        assert stage.worker_registry.dead_workers() == []
        assert (await stage.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_was_due_and_not_taken_is_rung_again_after_a_while(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await lose_messages(stage)

        stage.clock.advance(REENQUEUED_AFTER)
        early = await stage.sweeper.sweep()
        stage.clock.advance(TICK)
        repairs = await stage.sweeper.sweep()
        again = await stage.sweeper.sweep()

        assert not early
        assert repairs == Repairs(reenqueued=1)
        assert not again
        assert len(await stage.messages()) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_that_is_to_run_later_is_not_rung_before_it_is_due(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task(delay=3600))

        stage.clock.advance(timedelta(seconds=3599))
        early = await stage.sweeper.sweep()
        stage.clock.advance(SECOND)
        await lose_messages(stage)
        repairs = await stage.sweeper.sweep()

        assert not early
        assert repairs.reenqueued == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_healthy_tasks_are_left_alone(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        keys = ("done", "waiting", "cancelled", "running")
        await stage.submit(
            make_task("done"),
            make_task("waiting", "running"),
            make_task("cancelled"),
            make_task("running"),
        )
        await stage.complete(task_id("done"))
        await stage.transitions.apply_to_task(task_id("cancelled"), c.RequestCancel(by="ann"))
        await stage.dispatch()
        stage.clock.advance(timedelta(hours=1))
        await stage.claim(task_id("running"))
        stage.clock.advance(LEASE.duration)
        before = [await stage.task(key) for key in keys]

        repairs = await stage.sweeper.sweep()

        assert not repairs
        assert [await stage.task(key) for key in keys] == before


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["leased_tasks", "get_task", "commit"])
@scenario
async def test_two_sweepers_at_once_end_a_lease_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, other = ServiceHarness(backend), ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.claim(task_id("a"))
        stage.clock.advance(TAKEN_OVER_AFTER)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        one = stage.with_ports(ledger=ledger)

        await one.sweeper.sweep()

        assert one.sweeper.repairs.leases_ended + other.sweeper.repairs.leases_ended == 1
        assert (await stage.event_types("a")).count("Task Processing Failed") == 1
        assert (await stage.task("a")).attempts_used == 1


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["unqueued_tasks", "get_task", "commit"])
@scenario
async def test_two_sweepers_at_once_ring_for_a_task_once(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage, other = ServiceHarness(backend), ServiceHarness(backend)
        await stage.submit(make_task())
        await lose_messages(stage)
        stage.clock.advance(2 * REENQUEUED_AFTER)
        ledger = InterposedPort(backend.ledger, method, before=other.sweeper.sweep)
        one = stage.with_ports(ledger=ledger)

        await one.sweeper.sweep()

        assert one.sweeper.repairs.reenqueued + other.sweeper.repairs.reenqueued == 1
        assert len(await stage.messages()) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("method", ["get_task", "commit"])
@scenario
async def test_a_task_that_is_taken_while_the_sweeper_looks_is_not_rung(
    kind: str, method: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await lose_messages(stage)
        stage.clock.advance(2 * REENQUEUED_AFTER)

        async def somebody_takes_it() -> None:
            await stage.claim(task_id("a"))

        ledger = InterposedPort(backend.ledger, method, before=somebody_takes_it)
        repairs = await stage.with_ports(ledger=ledger).sweeper.sweep()

        assert not repairs
        assert (await stage.task("a")).state is TaskState.PROCESSING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_everything_that_is_left_behind_is_mended_in_one_sweep_however_much_it_is(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        keys = [f"t{number}" for number in range(1_200)]
        await stage.submit(*(make_task(key) for key in keys))
        for key in keys[:600]:
            await stage.claim(task_id(key))
        await lose_messages(stage)
        stage.clock.advance(2 * REENQUEUED_AFTER)

        repairs = await stage.sweeper.sweep()

        assert repairs == Repairs(leases_ended=600, reenqueued=600)


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_dead_worker_is_noticed_at_once_and_a_silent_one_at_the_next_sweep(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b"))
        running = asyncio.ensure_future(stage.sweeper.run())
        await stage.advance(SECOND)
        await stage.claim(task_id("a"), "dead")
        await stage.claim(task_id("b"), "silent")

        stage.worker_registry.kill("dead")
        await stage.advance(SECOND)
        soon = await stage.states()
        await stage.advance(TAKEN_OVER_AFTER - SECOND)
        before_the_sweep = await stage.states()
        await stage.advance(timedelta(seconds=15))
        later = await stage.states()

        assert soon == {"a": TaskState.PENDING, "b": TaskState.PROCESSING}
        assert before_the_sweep["b"] is TaskState.PROCESSING
        assert later["b"] is TaskState.PENDING
        assert stage.sweeper.repairs.leases_ended == 2
        running.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_sweeper_goes_on_after_the_store_was_out_of_reach(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task())
        await stage.claim(task_id("a"))
        ledger = FlakyPort(backend.ledger, "leased_tasks", times=5)
        running = asyncio.ensure_future(stage.with_ports(ledger=ledger).sweeper.run())

        await stage.advance(timedelta(minutes=3))

        assert ledger.failures == 5
        assert (await stage.task("a")).state is TaskState.PENDING
        running.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_what_was_mended_is_counted_over_all_sweeps(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        stage = ServiceHarness(backend)
        await stage.submit(make_task("a"), make_task("b"))
        for key in "ab":
            await stage.claim(task_id(key))
            stage.clock.advance(TAKEN_OVER_AFTER)
            await stage.sweeper.sweep()

        assert stage.sweeper.repairs.leases_ended == 2
