"""A retry helper for calls inside a task, for those that are not worth a whole new attempt.

Only failures that may pass are repeated, by the same categories that decide over attempts, and
with the same backoff. A task that raises ``Retry`` or ``Fail`` in the call is obeyed here too. When
the tries are used up the last error is raised as it is, so the attempt is judged by it.

    @with_retry
    async def fetch(url: str) -> bytes: ...

    page = with_retry(download, attempts=5)(url)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, overload

import tenacity

from longshore.core.tasks.backoff import RetryPolicy, delay_before
from longshore.core.tasks.failures import failure_of

P = ParamSpec("P")
T = TypeVar("T")

_DEFAULT_POLICY = RetryPolicy()


@overload
def with_retry(
    fn: Callable[P, T],
    *,
    attempts: int | None = ...,
    policy: RetryPolicy = ...,
    sleep: Callable[[float], Any] | None = ...,
    jitter: Callable[[], float] = ...,
) -> Callable[P, T]: ...
@overload
def with_retry(
    fn: None = ...,
    *,
    attempts: int | None = ...,
    policy: RetryPolicy = ...,
    sleep: Callable[[float], Any] | None = ...,
    jitter: Callable[[], float] = ...,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def with_retry(
    fn: Callable[..., Any] | None = None,
    *,
    attempts: int | None = None,
    policy: RetryPolicy = _DEFAULT_POLICY,
    sleep: Callable[[float], Any] | None = None,
    jitter: Callable[[], float] = random.random,
) -> Callable[..., Any]:
    """The function, plain or async, with failures that may pass tried again.

    Args:
        attempts: How often it is called at most; None for what the policy says.
        sleep: Waits that many seconds; an async function for an async ``fn``.
        roll: Gives the chance in the backoff, at least 0 and less than 1.
    """
    if attempts is not None:
        policy = replace(policy, max_attempts=attempts)
    options: dict[str, Any] = {} if sleep is None else {"sleep": sleep}
    decorate: Callable[[Callable[..., Any]], Callable[..., Any]] = tenacity.retry(
        stop=tenacity.stop_after_attempt(policy.max_attempts),
        retry=tenacity.retry_if_exception(_is_transient),
        wait=_backoff(policy, jitter),
        reraise=True,
        **options,
    )
    return decorate if fn is None else decorate(fn)


def _is_transient(error: BaseException) -> bool:
    # An interrupt or a cancellation is an order, and goes through at once.
    return isinstance(error, Exception) and failure_of(error).retryable


def _backoff(policy: RetryPolicy, jitter: Callable[[], float]) -> Callable[[Any], float]:
    def seconds_to_wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = failure_of(error).retry_after if error else None
        delay = delay_before(state.attempt_number, policy, jitter=jitter(), retry_after=asked)
        return delay.total_seconds()

    return seconds_to_wait
