"""Delivers an alert with a few retries, within a time limit.

A health check waits for its alerts, so the time for all tries is bounded. A ``Retry-After`` beyond
that limit is returned to the caller. Error messages never contain the text of a library, because it
quotes URLs and headers, which are secrets here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

import httpx
import tenacity

from longshore.errors import AlertFailed
from longshore.ports.clock import Clock

DELIVERY_TIMEOUT = timedelta(seconds=20)
"""Time to deliver one alert, including all tries."""

# Commands in an alert for the operator; a test compares them with ``services.documents``.
LIST_DEAD_LETTERS_COMMAND = "longshore dead list"
LIST_PARKED_TASKS_COMMAND = "longshore tasks --state parked"
ADD_BUDGET_COMMAND = "longshore budget add ID --usd N"

_MAX_TRIES = 4
_MAX_TRY = timedelta(seconds=5)
_MIN_TRY_S = 0.1
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 4.0
_MAX_RETRY_AFTER_S = 3600
_TOO_MANY = 429
_RETRYABLE_STATUSES = frozenset({408, 425, _TOO_MANY})
_SERVER_ERRORS = range(500, 600)
_REDIRECTS = range(300, 400)

DeliveryCall = Callable[[float], Awaitable[None]]
"""One try that may take so many seconds. Raises DeliveryFailed."""


class DeliveryFailed(Exception):
    """One try failed; ``retryable``: another may succeed."""

    def __init__(
        self, reason: str, *, retryable: bool, retry_after: timedelta | None = None
    ) -> None:
        self.reason = reason
        self.retryable = retryable
        self.retry_after = retry_after
        super().__init__(reason)


def failure_from_status(
    status: int, retry_after: str | None, error_code: str = ""
) -> DeliveryFailed:
    """The failure that a status means; ``error_code`` must be safe to print."""
    if status in _REDIRECTS:
        # The target of a redirect would receive the alert and the credentials.
        return DeliveryFailed(f"it redirects ({status}), which is not followed", retryable=False)
    reason = f"it answered {error_code} ({status})" if error_code else f"it answered {status}"
    retryable = status in _RETRYABLE_STATUSES or status in _SERVER_ERRORS
    wait = _parse_retry_after(retry_after) if retryable else None
    return DeliveryFailed(reason, retryable=retryable, retry_after=wait)


_sending: ContextVar[bool] = ContextVar("sending", default=False)
# At level DEBUG, httpcore logs the headers of answers, which may repeat a secret.
logging.getLogger("httpcore.http11").addFilter(lambda _: not _sending.get())


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request, with the beginning of its body."""

    status: int
    retry_after: str | None
    body: str


async def post(
    url: str, body: bytes, headers: Mapping[str, str], timeout_s: float, *, read_bytes: int = 0
) -> Answer:
    """Send a request by httpx's transport.

    Its client would log every URL, use proxies and ``.netrc``, and follow redirects.

    Args:
        read_bytes: How much of the answer's body is read.

    Raises:
        DeliveryFailed: there was no answer.
    """
    timeouts = {"timeout": httpx.Timeout(timeout_s).as_dict()}
    received = bytearray()
    sending = _sending.set(True)
    try:
        request = httpx.Request("POST", url, content=body, headers=headers, extensions=timeouts)
        async with httpx.AsyncHTTPTransport() as transport:
            response = await transport.handle_async_request(request)
            try:
                if read_bytes:
                    async for chunk in response.aiter_raw():
                        received += chunk
                        if len(received) >= read_bytes:
                            break
            finally:
                await response.aclose()
    except httpx.TimeoutException:
        raise DeliveryFailed("it did not answer in time", retryable=True) from None
    except (httpx.UnsupportedProtocol, httpx.InvalidURL, httpx.LocalProtocolError, ValueError):
        raise DeliveryFailed("the request is not valid", retryable=False) from None
    except httpx.TransportError as error:
        reason = f"it is unreachable ({type(error).__name__})"
        raise DeliveryFailed(reason, retryable=True) from None
    finally:
        _sending.reset(sending)
    return Answer(
        status=response.status_code,
        retry_after=response.headers.get("Retry-After"),
        body=received[:read_bytes].decode(errors="replace"),
    )


def _parse_retry_after(retry_after: str | None) -> timedelta | None:
    """The requested wait, bounded; None if it is missing or a date."""
    text = (retry_after or "").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    return timedelta(seconds=min(int(text[:9]), _MAX_RETRY_AFTER_S))


class AlertDelivery:
    """Delivers the alerts of one channel."""

    def __init__(
        self, channel: str, clock: Clock, *, timeout: timedelta = DELIVERY_TIMEOUT
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._timeout = timeout

    async def deliver(self, call: DeliveryCall) -> None:
        """Call until it succeeds, or until the tries or the time are used up.

        Raises:
            AlertFailed: every try failed.
        """
        deadline = self._clock.elapsed() + self._timeout

        def give_up(state: tenacity.RetryCallState) -> bool:
            next_try = self._clock.elapsed() + timedelta(seconds=state.upcoming_sleep)
            return state.attempt_number >= _MAX_TRIES or next_try >= deadline

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_is_retryable),
            stop=give_up,
            wait=_pause,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            await retrying(self._try_once, call, deadline)
        except DeliveryFailed as error:
            raise AlertFailed(self._channel, error.reason, error.retry_after) from None

    async def _try_once(self, call: DeliveryCall, deadline: timedelta) -> None:
        left = min(_MAX_TRY, deadline - self._clock.elapsed()).total_seconds()
        left = max(left, _MIN_TRY_S)
        try:
            # The event loop's clock, because this waits for a socket.
            async with asyncio.timeout(left):
                await call(left)
        except TimeoutError:
            raise DeliveryFailed("it did not answer in time", retryable=True) from None

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(timedelta(seconds=seconds))


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, DeliveryFailed) and error.retryable


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, DeliveryFailed) and error.retry_after is not None:
        return error.retry_after.total_seconds()
    doubled: float = _FIRST_PAUSE_S * 2 ** (state.attempt_number - 1)
    return min(doubled, _MAX_PAUSE_S)
