"""A message says where to look, the row what to do: on every backend, by the worker itself."""

import logging
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.maximums import RECEIVE_LIMIT
from longshore.core.queues import QueueDepth, message_body
from longshore.core.tasks import commands as c
from longshore.core.tasks.backoff import RetryPolicy
from longshore.core.tasks.states import TaskState
from longshore.ports.task_queue import OutgoingMessage
from longshore.testing.fake_runner import Script, fails
from tests.unit.services.harness import (
    BACKENDS,
    LEASE,
    NO_WAIT,
    SECOND,
    TENANT,
    WITH_QUEUE,
    ServiceHarness,
    make_task,
    open_backend,
    scenario,
    task_id,
)
from tests.unit.services.port_wrappers import InterposedPort
from tests.unit.services.samples import MINUTE

A = task_id("a")
EMPTY = QueueDepth(ready=0, hidden=0, dead_letters=0)
TICK = timedelta(milliseconds=1)
TAKEN_OVER_AFTER = LEASE.duration + LEASE.skew_margin


async def bring(harness: ServiceHarness, *keys: str) -> None:
    """One more message for each of these tasks, as a queue that delivers twice would have it."""
    messages = [OutgoingMessage(queue="default", body=message_body(task_id(key))) for key in keys]
    assert await harness.backend.queue.send(messages) == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_pending_task_is_claimed_and_run(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(NO_WAIT)
            assert await harness.source.depth("default") == EMPTY

        row = await harness.task("a")
        assert (row.state, row.attempt, row.fence > 0) == (TaskState.COMPLETED, 1, True)
        assert await harness.event_types("a") == [
            "Task Pending",
            "Task Processing Started",
            "Task Completed",
        ]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_of_two_concurrent_claims_only_the_first_commit_runs_the_task(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())

        async def other_worker_claims() -> None:
            await harness.claim(A, "worker-2")

        ledger = InterposedPort(backend.ledger, "commit", before=other_worker_claims)
        async with harness.with_ports(ledger=ledger).running_worker():
            await harness.advance(NO_WAIT)
            depth = await harness.source.depth("default")

        row = await harness.task("a")
        assert row.lease is not None
        assert (row.lease.worker_id, row.attempt) == ("worker-2", 1)
        assert harness.runner.specs == []
        assert depth == QueueDepth(ready=0, hidden=1, dead_letters=0)


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_of_a_task_that_has_ended_is_dropped_as_a_duplicate(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        keys = ("completed", "failed", "cancelled")
        await harness.submit(*(make_task(key) for key in keys))
        await harness.complete(task_id("completed"))
        await harness.fail(task_id("failed"))
        await harness.transitions.apply_to_task(task_id("cancelled"), c.RequestCancel(by="ann"))
        before = [await harness.task(key) for key in keys]
        await bring(harness, *keys)

        async with harness.running_worker():
            await harness.advance(NO_WAIT)
            assert await harness.source.depth("default") == EMPTY

        assert [row.state.value for row in before] == list(keys)
        assert [await harness.task(key) for key in keys] == before
        assert harness.runner.specs == []


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_message_without_a_task_is_dropped_recorded_and_logged(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await backend.queue.send(
            [OutgoingMessage(queue="default", body=message_body("job-missing_a"))]
        )

        with caplog.at_level(logging.ERROR, "longshore"):
            async with harness.running_worker():
                await harness.advance(NO_WAIT)
                assert await harness.source.depth("default") == EMPTY

        (event,) = (await backend.events.query(TENANT, event_type="Message Rejected")).items
        assert event.body.reason == "there is no task 'job-missing_a'"
        assert [record.getMessage() for record in caplog.records] == ["message.rejected"]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_in_good_hands_is_put_off_until_its_lease_could_be_over(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        claimed = await harness.claim(A, "worker-2")

        async with harness.running_worker():
            await harness.advance(NO_WAIT)

        assert await harness.task("a") == claimed
        assert harness.runner.specs == []
        harness.clock.advance(TAKEN_OVER_AFTER - TICK)
        assert await received(harness) == []
        harness.clock.advance(TICK)
        # A skip is not an attempt, and not a delivery that wears the message out either.
        assert await received(harness) == [1]


async def received(harness: ServiceHarness) -> list[int]:
    """How often the messages that can be seen now have been delivered; they stay."""
    result = await harness.backend.queue.receive(
        ["default"], limit=10, hidden_for=SECOND, wait=NO_WAIT
    )
    return [message.receive_count for message in result]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_whose_lease_is_over_is_taken_over_under_a_new_fence(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        lost = await harness.claim(A, "worker-2")
        harness.clock.advance(TAKEN_OVER_AFTER)

        async with harness.running_worker():
            await harness.advance(NO_WAIT)

        row = await harness.task("a")
        assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 2, 1)
        assert row.fence > lost.fence
        assert [spec.fence for spec in harness.runner.specs] == [row.fence]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_a_task_whose_lease_is_over_and_whose_attempts_are_used_up_fails_and_is_not_run(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task(maxAttempts=1))
        await harness.claim(A, "worker-2")
        harness.clock.advance(TAKEN_OVER_AFTER)

        async with harness.running_worker():
            await harness.advance(NO_WAIT)
            assert await harness.source.depth("default") == EMPTY

        last = (await harness.history("a"))[-1]
        assert (last.type, last.body.retry_count) == ("Task Failed", 1)
        assert harness.runner.specs == []


@pytest.mark.parametrize("kind", BACKENDS)
@scenario
async def test_a_task_has_three_attempts_by_default(kind: str, tmp_path: Path) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        harness.runner.set_scripts("a", Script(ending=fails()))
        await harness.submit(make_task())

        async with harness.running_worker():
            await harness.advance(MINUTE)

        row, last = await harness.task("a"), (await harness.history("a"))[-1]
        assert RetryPolicy().max_attempts == 3
        assert (row.state, row.attempts_used) == (TaskState.FAILED, 3)
        assert (last.body.source, last.body.retry_count) == ("worker", 3)
        assert [spec.attempt for spec in harness.runner.specs] == [1, 2, 3]


@pytest.mark.parametrize("kind", WITH_QUEUE)
@scenario
async def test_attempts_are_counted_on_the_row_and_not_by_deliveries(
    kind: str, tmp_path: Path
) -> None:
    async with open_backend(kind, tmp_path) as backend:
        harness = ServiceHarness(backend)
        await harness.submit(make_task())
        # More deliveries than there are attempts, of which nothing came.
        for _ in range(2 * RetryPolicy().max_attempts):
            harness.clock.advance(2 * SECOND)
            assert len(await received(harness)) == 1
        harness.clock.advance(2 * SECOND)

        async with harness.running_worker():
            await harness.advance(NO_WAIT)

        row = await harness.task("a")
        assert 2 * RetryPolicy().max_attempts < RECEIVE_LIMIT
        assert (row.state, row.attempt, row.attempts_used) == (TaskState.COMPLETED, 1, 0)
