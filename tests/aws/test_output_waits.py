"""Waiting for output on DynamoDB, where other processes send no notification."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from longshore.adapters.aws import output_log
from longshore.adapters.aws.client import AwsClient
from longshore.adapters.aws.output_log import DynamoOutputLog
from longshore.errors import BackendRejected, BackendUnavailable
from longshore.ports.output import OUTPUT_START, OutputPosition
from longshore.testing.contracts.suite import gather_all, running, settle, without_time_passing
from tests.aws.output_harness import OutputHarness, entries, open_harness, run_in_harness
from tests.aws.stand_in import stand_in

MINUTE = timedelta(minutes=1)
MILLISECOND = timedelta(milliseconds=1)
THROTTLING_ERROR = BackendUnavailable("throttled")

harness = pytest.fixture(scope="module")(open_harness)


@run_in_harness
async def test_short_waits_after_a_read_do_not_poll_each_time(
    harness: OutputHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_log, "_POLL_INTERVAL", MINUTE)
    log, task = harness.open_log(), harness.new_task()
    await log.append(task, entries(1))
    assert await log.read(task) == entries(1)
    harness.aws.calls.clear()

    for _ in range(20):
        async with running(
            log.wait_for_output(task, after=OutputPosition(1, 1), timeout=MILLISECOND)
        ) as waiting:
            harness.clock.advance(MILLISECOND)
            assert await without_time_passing(waiting) is False

    assert harness.aws.calls == []


@run_in_harness
async def test_output_of_another_process_is_seen_without_our_clock_moving(
    harness: OutputHarness,
) -> None:
    log, task = harness.open_log(), harness.new_task()
    async with running(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE)) as waiting:
        await harness.open_log().append(task, entries(1))

        assert await without_time_passing(waiting) is True


@pytest.mark.parametrize(("last", "expected"), [(99, False), (100, True)])
@run_in_harness
async def test_a_wait_for_a_later_position_ends_when_output_reaches_it(
    harness: OutputHarness, last: int, expected: bool
) -> None:
    log, task = harness.open_log(), harness.new_task()
    await harness.open_log().append(task, entries(1, 2))
    async with running(
        log.wait_for_output(task, after=OutputPosition(1, 99), timeout=3 * MINUTE)
    ) as waiting:
        other = harness.open_log()
        await other.append(task, entries(*range(3, 50)))
        await other.append(task, entries(*range(50, last + 1)))
        for _ in range(200):
            await settle()
            if waiting.done():
                break
            harness.clock.advance(timedelta(seconds=1))

        assert await without_time_passing(waiting) is expected


@run_in_harness
async def test_a_wait_continues_after_failed_polls(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    harness.aws.before = lambda number, _: THROTTLING_ERROR if number <= 3 else None
    async with running(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE)) as waiting:
        while len(harness.aws.calls) < 3:
            harness.clock.advance(timedelta(seconds=1))
            await settle()
        await harness.open_log().append(task, entries(1))

        assert await without_time_passing(waiting) is True


@run_in_harness
async def test_all_waits_raise_the_error_of_a_rejected_poll(harness: OutputHarness) -> None:
    log, task = harness.open_log(), harness.new_task()
    harness.aws.before = lambda number, _: BackendRejected("denied")

    answers = await without_time_passing(
        gather_all(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE) for _ in range(3))
    )

    assert [type(answer) for answer in answers] == [BackendRejected] * 3


@run_in_harness
async def test_a_cancelled_wait_leaves_no_poll_running(harness: OutputHarness) -> None:
    arrived, never = asyncio.Event(), asyncio.Event()

    class Silent(AwsClient):
        async def call(self, *_: Any, **__: Any) -> Any:
            arrived.set()
            await never.wait()

    log, task = (
        DynamoOutputLog(Silent(stand_in().client_options), harness.names, harness.clock),
        "job_a",
    )
    before = asyncio.all_tasks()
    async with running(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE)):
        await without_time_passing(arrived.wait())
    await settle()

    assert asyncio.all_tasks() <= before


@run_in_harness
async def test_the_poll_of_a_cancelled_wait_is_repeated_by_the_next_wait(
    harness: OutputHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_log, "_POLL_INTERVAL", MINUTE)
    log, task, never = harness.open_log(), harness.new_task(), asyncio.Event()
    await harness.open_log().append(task, entries(1))
    harness.aws.reset()
    harness.aws.concurrent_call = (1, never.wait)
    async with running(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE)):
        assert harness.aws.calls == ["query"]

    assert (
        await without_time_passing(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE))
        is True
    )


@run_in_harness
async def test_a_task_that_is_waited_for_is_not_forgotten_among_many(
    harness: OutputHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_log, "_TASKS_CACHED", 2)
    monkeypatch.setattr(output_log, "_SEGMENTS_CACHED", 2)
    log, task = harness.open_log(), harness.new_task()
    async with running(log.wait_for_output(task, after=OUTPUT_START, timeout=MINUTE)) as waiting:
        others = [harness.new_task() for _ in range(5)]
        for other in others:
            await log.append(other, entries(1, 2, 3))
            assert await log.read(other) == entries(1, 2, 3)
        for other in others:
            assert await log.read(other, after=OutputPosition(1, 1), limit=1) == entries(2)
            await log.append(other, entries(4))
        harness.aws.before = lambda number, operation: (
            THROTTLING_ERROR if operation == "query" else None
        )
        await log.append(task, entries(1))

        assert await without_time_passing(waiting) is True
