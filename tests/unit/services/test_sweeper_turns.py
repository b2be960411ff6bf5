"""One sweeper of a machine sweeps, the next takes over at once, and repairs are logged."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.events.codec import properties_of
from longshore.core.tasks.states import TaskState
from longshore.execution.host.registry import FileWorkerRegistry
from longshore.services.sweeper import Repairs
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services.dead_messages import exhaust_receives, lose_messages
from tests.unit.services.harness import (
    BACKENDS,
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
from tests.unit.services.port_wrappers import record_calls
from tests.unit.services.samples import MINUTE

TAKEN_OVER_AFTER = LEASE.duration + LEASE.skew_margin
SWEEP = "ledger.open_intents"  # asked for once a sweep


@contextmanager
def sweeping(*stages: ServiceHarness) -> Iterator[list["asyncio.Task[None]"]]:
    running = [asyncio.ensure_future(harness.sweeper.run()) for harness in stages]
    try:
        yield running
    finally:
        for item in running:
            item.cancel()


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_one_of_many_sweepers_sweeps_and_the_next_takes_over_at_once_when_it_ends(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        (first, of_first), (second, of_second) = record_calls(backend), record_calls(backend)
        with (
            closing(FileWorkerRegistry(tmp_path)) as of_one_process,
            closing(FileWorkerRegistry(tmp_path)) as of_another,
        ):
            item = ServiceHarness(first, worker_registry=of_one_process)
            other = ServiceHarness(second, worker_registry=of_another)
            with sweeping(item, other) as (running, _):
                await item.advance(4 * MINUTE)
                swept = (of_first.count(SWEEP), of_second.count(SWEEP))
                running.cancel()
                of_one_process.close()
                await item.advance(SECOND)

        assert swept == (5, 0)
        assert of_first.count(SWEEP) == 5
        assert of_second.count(SWEEP) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_the_process_that_takes_over_ends_the_leases_of_the_dead_worker(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        presence = FakeWorkerRegistry(leading=False)
        harness = ServiceHarness(backend, worker_registry=presence)
        await harness.submit(make_task())
        await harness.claim(task_id("a"), "leader")
        with sweeping(harness):
            await harness.advance(SECOND)
            waits = (await harness.task("a")).state
            presence.kill("leader")
            presence.leading = True
            await harness.advance(SECOND)

        assert waits is TaskState.PROCESSING
        assert (await harness.task("a")).state is TaskState.PENDING


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_if_the_process_with_the_role_hangs_the_others_sweep(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched, worker_registry=FakeWorkerRegistry(leading=False))
        with sweeping(harness):
            await harness.advance(5 * MINUTE - SECOND)
            early = calls.count(SWEEP)
            await harness.advance(2 * SECOND)

        assert early == 0
        assert calls.count(SWEEP) == 1


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_process_without_the_role_ends_a_lease_as_soon_as_it_is_over(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend, worker_registry=FakeWorkerRegistry(leading=False))
        await harness.submit(make_task("a"), make_task("b"))
        with sweeping(harness):
            await harness.advance(SECOND)  # it has looked, and found no lease
            await harness.claim(task_id("a"))
            await harness.advance(10 * SECOND)
            await harness.claim(task_id("b"))
            await harness.advance(TAKEN_OVER_AFTER - 11 * SECOND)
            early = await harness.states()
            await harness.advance(SECOND)
            over = await harness.states()
            await harness.advance(10 * SECOND)

        assert early == {"a": TaskState.PROCESSING, "b": TaskState.PROCESSING}
        assert over == {"a": TaskState.PENDING, "b": TaskState.PROCESSING}
        assert await harness.states() == {"a": TaskState.PENDING, "b": TaskState.PENDING}


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_standby_process_sweeps_again_and_again(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        watched, calls = record_calls(backend)
        harness = ServiceHarness(watched, worker_registry=FakeWorkerRegistry(leading=False))
        swept = []
        with sweeping(harness):
            for _ in range(4):
                await harness.advance(5 * MINUTE)
                swept.append(calls.count(SWEEP))

        assert swept == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_all_leases_of_a_dead_worker_are_ended_however_many_there_are(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        keys = [f"t{number}" for number in range(1_100)]
        await harness.submit(*(make_task(key) for key in keys))
        # Those of others end earlier, and stand before its own wherever it is looked.
        for key in keys[:600]:
            await harness.claim(task_id(key), "alive")
        harness.clock.advance(SECOND)
        for key in keys[600:]:
            await harness.claim(task_id(key), "dead")
        harness.worker_registry.kill("dead")

        await harness.sweeper.reap_dead_workers()

        states = await harness.states()
        assert harness.sweeper.repairs == Repairs(leases_ended=500)
        assert {states[key] for key in keys[:600]} == {TaskState.PROCESSING}
        assert {states[key] for key in keys[600:]} == {TaskState.PENDING}
        assert harness.worker_registry.dead_workers() == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_backlog_is_enqueued_again_with_pauses_that_double(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        reenqueued_at = []
        for minute in range(1, 200):
            harness.clock.advance(MINUTE + timedelta(milliseconds=1))
            await lose_messages(harness)
            if (await harness.sweeper.sweep())["reenqueued"]:
                reenqueued_at.append(minute)

        assert reenqueued_at == [1, 2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_after_an_outage_of_the_queue_the_next_sweep_enqueues(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        queue = FlakyPort(backend.queue, "send", times=None)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        await harness.submit(make_task())
        for _ in range(100):
            harness.clock.advance(MINUTE + SECOND)
            during = await harness.sweeper.sweep()
        queue.recover()
        harness.clock.advance(SECOND)

        repairs = await harness.sweeper.sweep()

        assert during == Repairs()
        assert repairs == Repairs(reenqueued=1)
        assert len(await harness.messages()) == 1


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_that_is_due_again_is_enqueued_as_soon_as_the_first_time(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await lose_messages(harness)
        harness.clock.advance(timedelta(hours=3))
        await harness.claim(task_id("a"))
        harness.clock.advance(TAKEN_OVER_AFTER)
        await harness.sweeper.sweep()
        await lose_messages(harness)

        harness.clock.advance(MINUTE + SECOND)
        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(reenqueued=1)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_that_was_worn_out_has_its_effect_in_a_sweep(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await exhaust_receives(harness)

        repairs = await harness.sweeper.sweep()

        assert repairs == Repairs(dead_letters=1)
        assert (await harness.task("a")).state is TaskState.FAILED


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_repairs_are_logged_by_kind(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"), make_task("c"))
        for key in "ab":
            await harness.claim(task_id(key))
        await lose_messages(harness)
        harness.clock.advance(TAKEN_OVER_AFTER + MINUTE)
        with caplog.at_level(logging.WARNING, "longshore"):
            await harness.sweeper.sweep()

        (record,) = [item for item in caplog.records if item.getMessage() == "sweep.repaired"]
        assert (record.leases_ended, record.reenqueued) == (2, 1)
        assert not hasattr(record, "dependents_notified")


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_sweep_with_repairs_is_an_event_and_one_without_is_none(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"), make_task("c"))
        for key in "ab":
            await harness.claim(task_id(key))
        await lose_messages(harness)
        harness.clock.advance(TAKEN_OVER_AFTER + MINUTE)

        await harness.sweeper.sweep()
        await harness.sweeper.sweep()

        (event,) = await backend.events.history(TENANT, "SYSTEM#sweeper")
        assert event.context.origin == "sweeper"
        assert properties_of(event) == {
            "by": "sweeper",
            "action": "sweep.repaired",
            "subject": "sweeper",
            "detail": "leases_ended 2, reenqueued 1",
        }


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_sweep_without_repairs_logs_nothing(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        with caplog.at_level(logging.DEBUG, "longshore.services.sweeper"):
            await harness.sweeper.sweep()

        assert caplog.records == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_repairs_before_an_outage_are_counted(
    kind: str,
    tmp_path: Path,
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await harness.claim(task_id("a"))
        harness.clock.advance(TAKEN_OVER_AFTER)
        ledger = FlakyPort(backend.ledger, "open_intents", times=3)
        harness = harness.with_ports(ledger=ledger)
        with sweeping(harness):
            await harness.advance(MINUTE)

        assert ledger.failures == 3
        assert harness.sweeper.repairs["leases_ended"] == 1


@scenario
async def test_where_functions_sweep_a_worker_looks_after_its_own_machines_dead_alone(
    tmp_path: Path,
) -> None:
    async with open_backend("memory", tmp_path) as backend:
        notices, calls = record_calls(backend)
        harness = ServiceHarness(notices)
        await harness.submit(make_task())
        await harness.claim(task_id("a"), "dead")
        harness.worker_registry.kill("dead")
        sweeper = harness.build_sweeper(sweeps=False)

        running = asyncio.ensure_future(sweeper.run())
        await harness.advance(10 * MINUTE)
        running.cancel()

        assert SWEEP not in calls
        assert (await harness.task("a")).state is TaskState.PENDING
