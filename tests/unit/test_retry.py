"""The retry helper: what is repeated, how often, and how long it waits. Nothing here sleeps."""

import asyncio
from datetime import timedelta

import pytest

from longshore.core.tasks.backoff import RetryPolicy
from longshore.errors import Fail, Retry
from longshore.retry import with_retry


class Flaky:
    """Raises each given error once, then answers; as a plain or an async call."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors = list(errors)
        self.calls: list[tuple[object, ...]] = []

    def plain(self, *args: object) -> str:
        self.calls.append(args)
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def awaited(self, *args: object) -> str:
        return self.plain(*args)


class Naps:
    """Waits that were asked for, none of them taken."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def plain(self, seconds: float) -> None:
        self.seconds.append(seconds)

    async def awaited(self, seconds: float) -> None:
        self.seconds.append(seconds)


def half() -> float:
    return 0.5


def test_a_failure_that_passes_is_not_seen_by_the_caller() -> None:
    flaky, naps = Flaky(TimeoutError(), ConnectionError()), Naps()

    answer = with_retry(flaky.plain, sleep=naps.plain, jitter=half)("a", 1)

    assert answer == "done"
    assert flaky.calls == [("a", 1)] * 3
    assert naps.seconds == [0.5, 1.0]


def test_an_async_function_is_awaited_and_repeated() -> None:
    flaky, naps = Flaky(TimeoutError(), ConnectionError()), Naps()

    answer = asyncio.run(with_retry(flaky.awaited, sleep=naps.awaited, jitter=half)("a"))

    assert answer == "done"
    assert flaky.calls == [("a",)] * 3
    assert naps.seconds == [0.5, 1.0]


def test_a_function_that_succeeds_is_called_once() -> None:
    flaky, naps = Flaky(), Naps()

    with_retry(flaky.plain, sleep=naps.plain)()

    assert (len(flaky.calls), naps.seconds) == (1, [])


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), PermissionError(), KeyError("x"), RuntimeError("?"), Fail("HTTP 503")],
)
def test_a_final_failure_is_raised_at_once(error: Exception) -> None:
    flaky, naps = Flaky(error), Naps()

    with pytest.raises(type(error)) as caught:
        with_retry(flaky.plain, sleep=naps.plain)()

    assert caught.value is error
    assert (len(flaky.calls), naps.seconds) == (1, [])


def test_the_last_error_is_raised_when_three_attempts_are_used_up() -> None:
    errors = [TimeoutError("1"), TimeoutError("2"), TimeoutError("3"), TimeoutError("4")]
    flaky, naps = Flaky(*errors), Naps()

    with pytest.raises(TimeoutError) as caught:
        with_retry(flaky.plain, sleep=naps.plain)()

    assert caught.value is errors[2]
    assert len(naps.seconds) == 2


def test_an_async_function_raises_its_last_error_too() -> None:
    flaky, naps = Flaky(*[TimeoutError(str(n)) for n in range(5)]), Naps()

    with pytest.raises(TimeoutError, match="2"):
        asyncio.run(with_retry(flaky.awaited, sleep=naps.awaited)())


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_the_number_of_attempts_may_be_chosen(attempts: int) -> None:
    flaky, naps = Flaky(*[TimeoutError()] * 9), Naps()

    with pytest.raises(TimeoutError):
        with_retry(flaky.plain, attempts=attempts, sleep=naps.plain)()

    assert len(flaky.calls) == attempts


def test_the_policy_says_how_often_and_how_long() -> None:
    policy = RetryPolicy(max_attempts=4, base=timedelta(seconds=10), cap=timedelta(seconds=20))
    flaky, naps = Flaky(*[TimeoutError()] * 3), Naps()

    with_retry(flaky.plain, policy=policy, sleep=naps.plain, jitter=half)()

    assert naps.seconds == [5.0, 10.0, 10.0]


def test_attempts_outrank_the_policy() -> None:
    flaky, naps = Flaky(*[TimeoutError()] * 9), Naps()

    with pytest.raises(TimeoutError):
        with_retry(flaky.plain, attempts=2, policy=RetryPolicy(max_attempts=7), sleep=naps.plain)()

    assert len(flaky.calls) == 2


def test_no_attempt_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts must be at least 1"):
        with_retry(Flaky().plain, attempts=0)


def test_the_usual_chance_stays_within_the_window() -> None:
    flaky, naps = Flaky(*[TimeoutError()] * 2), Naps()

    with_retry(flaky.plain, sleep=naps.plain)()

    assert 0 <= naps.seconds[0] < 1
    assert 0 <= naps.seconds[1] < 2


def test_the_server_is_given_the_time_it_asked_for() -> None:
    flaky, naps = Flaky(Retry("busy", after=timedelta(minutes=2))), Naps()

    with_retry(flaky.plain, sleep=naps.plain, jitter=lambda: 0.0)()

    assert naps.seconds == [120.0]


@pytest.mark.parametrize("error", [KeyboardInterrupt("timed out"), SystemExit(1)])
def test_an_exception_that_ends_the_process_is_not_retried(error: BaseException) -> None:
    flaky, naps = Flaky(error), Naps()

    with pytest.raises(type(error)):
        with_retry(flaky.plain, sleep=naps.plain)()

    assert len(flaky.calls) == 1


def test_a_group_with_a_cancellation_in_it_is_not_repeated() -> None:
    group = BaseExceptionGroup("both", [TimeoutError(), asyncio.CancelledError()])
    flaky, naps = Flaky(group), Naps()

    with pytest.raises(BaseExceptionGroup):
        with_retry(flaky.plain, sleep=naps.plain)()

    assert len(flaky.calls) == 1


def test_a_cancelled_call_is_not_repeated() -> None:
    error = asyncio.CancelledError()
    error.__cause__ = TimeoutError()
    flaky, naps = Flaky(error), Naps()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(with_retry(flaky.awaited, sleep=naps.awaited)())

    assert len(flaky.calls) == 1


def test_the_decorator_works_with_and_without_options() -> None:
    naps = Naps()
    errors = [TimeoutError()]

    @with_retry(attempts=2, sleep=naps.plain)
    def once_more(word: str) -> str:
        """Say it."""
        if errors:
            raise errors.pop()
        return word

    @with_retry
    def at_once(word: str) -> str:
        return word

    assert (once_more("a"), at_once("b"), len(naps.seconds)) == ("a", "b", 1)
    assert (once_more.__name__, once_more.__doc__) == ("once_more", "Say it.")


def test_a_decorated_async_function_stays_one() -> None:
    @with_retry
    async def answer() -> int:
        return 42

    assert asyncio.iscoroutinefunction(answer)
    assert asyncio.run(answer()) == 42


def test_calls_of_one_decorated_function_do_not_share_their_attempts() -> None:
    flaky, naps = Flaky(TimeoutError(), TimeoutError()), Naps()
    patient = with_retry(flaky.plain, sleep=naps.plain)

    patient()
    flaky.errors = [TimeoutError(), TimeoutError()]

    assert patient() == "done"
