"""A retry helper for calls inside a task that do not need a new attempt.

Only transient failures are retried, by the same categories and with the same backoff as attempts.
``Retry`` and ``Fail`` have the same meaning as in a task. After the last try, the last error is
raised as it is and classifies the attempt.

    @with_retry
    async def fetch(url: str) -> bytes: ...

    page = with_retry(download, attempts=5)(url)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

import tenacity

from longshore.core.tasks.backoff import RetryPolicy, delay_before
from longshore.core.tasks.failures import failure_of

P = ParamSpec("P")
T = TypeVar("T")

_DEFAULT_POLICY = RetryPolicy()


class RetryOptions(TypedDict, total=False):
    """The options of ``with_retry``."""

    attempts: int | None
    policy: RetryPolicy
    sleep: Callable[[float], Any] | None
    jitter: Callable[[], float]


@overload
def with_retry(fn: Callable[P, T], **options: Unpack[RetryOptions]) -> Callable[P, T]: ...
@overload
def with_retry(
    fn: None = ..., **options: Unpack[RetryOptions]
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
def with_retry(
    fn: Callable[..., Any] | None = None,
    *,
    attempts: int | None = None,
    policy: RetryPolicy = _DEFAULT_POLICY,
    sleep: Callable[[float], Any] | None = None,
    jitter: Callable[[], float] = random.random,
) -> Callable[..., Any]:
    """Returns a plain or async function that is called again after transient failures.

    Args:
        attempts: The maximum number of calls; None: that of the policy.
        sleep: Waits for a number of seconds; an async function for an async ``fn``.
        jitter: Returns the random number of the backoff, at least 0 and less than 1.
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
    # An interrupt or a cancellation is raised immediately.
    return isinstance(error, Exception) and failure_of(error).retryable


def _backoff(policy: RetryPolicy, jitter: Callable[[], float]) -> Callable[[Any], float]:
    def seconds_to_wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        retry_after = failure_of(error).retry_after if error else None
        delay = delay_before(state.attempt_number, policy, jitter=jitter(), retry_after=retry_after)
        return delay.total_seconds()

    return seconds_to_wait
