"""Retries of calls to a backend, and races between awaitables."""

import asyncio
import logging
from datetime import timedelta

import pytest

from longshore.errors import BackendUnavailable
from longshore.services.resilience import (
    SHORT_PAUSES,
    log_and_continue,
    pauses_within,
    race,
    retry_unavailable,
)
from longshore.testing.clock import FakeClock

SECOND = timedelta(seconds=1)


class RecordingClock(FakeClock):
    """A clock whose sleeps end at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sleeps: list[timedelta] = []

    async def sleep(self, duration: timedelta) -> None:
        self.sleeps.append(duration)
        self.advance(duration)


class FailingCall:
    """A call that fails a number of times."""

    def __init__(self, failures: int, error: Exception | None = None) -> None:
        self.calls = 0
        self._failures = failures
        self._error = error or BackendUnavailable("out of reach")

    async def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error
        return "answer"


def test_a_call_is_retried_with_the_pauses_in_between() -> None:
    clock, call = RecordingClock(), FailingCall(2)

    answer = asyncio.run(retry_unavailable(clock, call, (SECOND, 2 * SECOND, 4 * SECOND)))

    assert (answer, call.calls, clock.sleeps) == ("answer", 3, [SECOND, 2 * SECOND])


def test_a_call_that_keeps_failing_is_made_once_more_than_there_are_pauses() -> None:
    clock, call = RecordingClock(), FailingCall(100)

    with pytest.raises(BackendUnavailable):
        asyncio.run(retry_unavailable(clock, call))

    assert call.calls == len(SHORT_PAUSES) + 1 == 6
    assert clock.sleeps == list(SHORT_PAUSES)


def test_another_error_is_not_retried() -> None:
    clock, call = RecordingClock(), FailingCall(1, ValueError("wrong"))

    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(retry_unavailable(clock, call))

    assert (call.calls, clock.sleeps) == (1, [])


def test_pauses_end_when_the_timeout_has_passed() -> None:
    clock = RecordingClock()

    async def pause() -> int:
        number = 0
        for duration in pauses_within(clock, 3 * SECOND):
            number += 1
            await clock.sleep(duration)
        return number

    assert asyncio.run(pause()) == 3
    assert list(pauses_within(clock, timedelta(0))) == []


def test_a_race_yields_when_the_first_awaitable_is_done() -> None:
    async def run() -> list[bool]:
        async def slow() -> None:
            for _ in range(100):
                await asyncio.sleep(0)

        async with race(asyncio.sleep(0, "fast"), slow()) as futures:
            assert futures[0].result() == "fast"
            return [future.done() for future in futures]

    assert asyncio.run(run()) == [True, False]


def test_the_losers_of_a_race_have_ended_when_it_is_left() -> None:
    ended: list[str] = []

    async def loser() -> None:
        try:
            for _ in range(100):
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def run() -> bool:
        async with race(asyncio.sleep(0), loser()) as (_, lost):
            pass
        assert ended == ["cleaned up"]
        return lost.cancelled()

    assert asyncio.run(run())


def test_a_future_of_the_caller_is_not_cancelled_by_a_race() -> None:
    async def run() -> bool:
        own = asyncio.get_running_loop().create_future()
        async with race(asyncio.sleep(0), own):
            pass
        return own.cancelled()

    assert not asyncio.run(run())


def test_an_unexpected_error_is_logged_and_an_unavailable_backend_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logger = logging.getLogger("test")

    with log_and_continue(logger, "item.failed", task_id="t"):
        raise ValueError

    (record,) = caplog.records
    assert (record.message, record.exc_info is not None) == ("item.failed", True)
    with pytest.raises(BackendUnavailable), log_and_continue(logger, "item.failed"):
        raise BackendUnavailable("out of reach")
