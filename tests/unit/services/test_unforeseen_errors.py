"""An unforeseen fault in an adapter is reported, costs one task at most, and ends no worker."""

import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.jobs.numbers import NumberSet
from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.output import Stream
from longshore.services.resilience import log_and_continue
from longshore.services.sweeper import Repairs
from longshore.testing.fake_runner import FakeRunner, Script, prints, succeeds
from longshore.testing.flaky_port import FlakyPort
from longshore.testing.worker_registry import FakeWorkerRegistry
from tests.unit.services.dead_messages import lose_messages
from tests.unit.services.harness import (
    IN_MEMORY,
    NO_WAIT,
    SECOND,
    ServiceHarness,
    job_id,
    make_task,
    open_backend,
    scenario,
    task_id,
)

MINUTE = timedelta(minutes=1)
SETTLED_AFTER = timedelta(seconds=30)
FAULT = RuntimeError("a fault in an adapter")


class BrokenFor:
    """A port that breaks whenever it is asked about one thing, for ever."""

    def __init__(self, port: Any, method: str, about: str) -> None:
        self._port = port
        self._method = method
        self._about = about

    def __getattr__(self, name: str) -> Any:
        result = getattr(self._port, name)
        if name != self._method:
            return result

        async def call(about: Any, *arguments: Any, **named: Any) -> Any:
            if about == self._about or self._about in about:
                raise FAULT
            return await result(about, *arguments, **named)

        return call


@pytest.mark.parametrize("kind", IN_MEMORY)
@scenario
async def test_a_job_that_cannot_be_moved_keeps_no_other_from_moving(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        for request in ("cursed", "well"):
            await harness.submit(make_task("a"), make_task("b", "a"), request_id=request)
            await harness.complete(task_id("a", request))
        ledger = BrokenFor(backend.ledger, "get_job", job_id("cursed"))
        dispatcher = harness.with_ports(ledger=ledger).dispatcher

        assert await dispatcher.step(NO_WAIT)
        assert not await dispatcher.step(NO_WAIT)

        assert (await harness.job("well")).completed == NumberSet([0])
        assert (await harness.task("b", "well")).state is TaskState.PENDING
        assert (await harness.task("b", "cursed")).state is TaskState.WAITING
        # What was passed over is found by the sweeper, once it can be dealt with.
        harness.clock.advance(SETTLED_AFTER)
        assert (await harness.sweeper.sweep())["ends_recorded"] == 1
        assert (await harness.task("b", "cursed")).state is TaskState.PENDING


@scenario
async def test_an_unavailable_store_outranks_other_errors_so_that_all_is_delivered_again() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = ServiceHarness(backend)
        for request in ("cursed", "far"):
            await harness.submit(make_task("a"), request_id=request)
            await harness.complete(task_id("a", request))
        ledger = BrokenFor(backend.ledger, "get_job", job_id("cursed"))
        far = FlakyPort(ledger, "get_tasks", BackendUnavailable("far"), None)
        dispatcher = harness.with_ports(ledger=far).dispatcher

        with pytest.raises(BackendUnavailable):
            await harness.advance_until_done(dispatcher.step(NO_WAIT))

        assert await harness.dispatch() == 1
        assert (await harness.job("far")).state is JobState.COMPLETED


@pytest.mark.parametrize(
    "listing",
    ["leased_tasks", "open_intents", "unrecorded_ends", "unnotified_dependents", "unreported_ends"],
)
@scenario
async def test_a_repair_that_breaks_keeps_no_other_from_being_made(listing: str) -> None:
    async with open_backend("memory", Path()) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        await lose_messages(harness)
        harness.clock.advance(2 * MINUTE)
        broken = FlakyPort(backend.ledger, listing, FAULT, None)

        repairs = await harness.with_ports(ledger=broken).sweeper.sweep()

        assert broken.failures
        assert repairs == Repairs(reenqueued=1)


@scenario
async def test_a_task_that_cannot_be_enqueued_does_not_prevent_others() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task("a"), make_task("b"), make_task("c"))
        await lose_messages(harness)
        harness.clock.advance(2 * MINUTE)
        ledger = BrokenFor(backend.ledger, "get_task", task_id("b"))

        repairs = await harness.with_ports(ledger=ledger).sweeper.sweep()

        assert repairs == Repairs(reenqueued=2)


class UnclearableRegistry(FakeWorkerRegistry):
    """A machine on which one worker's processes cannot be killed."""

    def reap(self, worker_id: str) -> None:
        if worker_id == "stubborn":
            raise FAULT
        super().reap(worker_id)


@scenario
async def test_tasks_of_a_worker_that_cannot_be_cleared_away_are_not_given_to_others() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = ServiceHarness(backend, worker_registry=UnclearableRegistry())
        for key in ("stubborn", "other"):
            await harness.submit(make_task(key), request_id=key)
            await harness.claim(task_id(key, key), key)
            harness.worker_registry.kill(key)

        await harness.sweeper.reap_dead_workers()

        assert (await harness.task("other", "other")).state is TaskState.PENDING
        assert (await harness.task("stubborn", "stubborn")).state is TaskState.PROCESSING
        assert harness.worker_registry.dead_workers() == ["stubborn"]


@pytest.mark.parametrize("error", [FAULT, BackendRejected("denied")])
@scenario
async def test_a_worker_outlasts_a_queue_that_breaks(error: Exception) -> None:
    async with open_backend("memory", Path()) as backend:
        queue = FlakyPort(backend.queue, "receive", error, 3)
        harness = ServiceHarness(backend).with_ports(queue=queue)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=5))

        assert queue.failures == 3
        assert (await harness.task("a")).state is TaskState.COMPLETED


class FaultyRunner(FakeRunner):
    """Children of which one method breaks, a number of times."""

    method = "ending"
    times = 1

    async def start(self, spec: Any, *, deadline_ns: int) -> Any:
        child = await super().start(spec, deadline_ns=deadline_ns)
        broken = FlakyPort(child, self.method, FAULT, self.times)
        self.times = 0
        return broken


def make_children_faulty(harness: ServiceHarness, method: str, *, times: int = 1) -> ServiceHarness:
    runner = FaultyRunner(harness.clock)
    runner.method, runner.times = method, times
    harness.runner = runner
    return harness


@scenario
async def test_an_error_in_the_worker_costs_one_attempt_and_is_in_the_history() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = make_children_faulty(ServiceHarness(backend), "ending")
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            broken = await harness.task("a")
            await harness.advance(MINUTE)

        assert broken.state is TaskState.PENDING
        assert broken.attempts_used == 1
        assert broken.failure is not None
        assert broken.failure.category is ErrorCategory.CRASH
        assert broken.failure.message == "the worker failed: RuntimeError: a fault in an adapter"
        row = await harness.task("a")
        assert (row.state, row.attempt) == (TaskState.COMPLETED, 2)


@scenario
async def test_a_folder_that_cannot_be_tidied_up_does_not_cost_the_work() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = make_children_faulty(ServiceHarness(backend), "close")
        harness.runner.set_scripts("a", Script(ending=succeeds(7)))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)

        row = await harness.task("a")
        assert (row.state, row.attempt) == (TaskState.COMPLETED, 1)
        assert await harness.documents.load(row.result) == 7


@scenario
async def test_no_outcome_is_reported_while_the_child_may_be_alive() -> None:
    async with open_backend("memory", Path()) as backend:
        harness = make_children_faulty(ServiceHarness(backend), "stop", times=100)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(SECOND)
            claimed = await harness.task("a")

        assert claimed.state is TaskState.PROCESSING
        assert "Task Completed" not in await harness.event_types("a")


@scenario
async def test_output_that_a_fault_swallows_has_a_marker_in_its_place() -> None:
    async with open_backend("memory", Path()) as backend:
        output = FlakyPort(backend.output, "append", FAULT, 1)
        harness = ServiceHarness(backend).with_ports(output=output)
        harness.runner.set_scripts("a", Script(reports=[prints("gone"), SECOND, prints("there")]))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(timedelta(seconds=3))

        entries = await backend.output.read(task_id("a"))
        assert [(item.stream, item.sequence, item.end) for item in entries] == [
            (Stream.LOST, 1, 1),
            (Stream.STDOUT, 2, 2),
        ]
        row = await harness.task("a")
        assert (row.state, row.last_output) == (TaskState.COMPLETED, 2)


def test_a_skipped_error_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("longshore.edges")
    logger.propagate = True
    with (
        caplog.at_level(logging.ERROR, "longshore"),
        log_and_continue(logger, "job.stuck", job_id="job-1"),
    ):
        raise FAULT

    (record,) = caplog.records
    assert record.getMessage() == "job.stuck"
    assert record.exc_info is not None
    assert record.exc_info[1] is FAULT
    assert record.job_id == "job-1"


def test_what_is_out_of_reach_is_not_stepped_over() -> None:
    with (
        pytest.raises(BackendUnavailable),
        log_and_continue(logging.getLogger("longshore.edges"), "job.stuck"),
    ):
        raise BackendUnavailable
