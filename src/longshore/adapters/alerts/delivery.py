"""Delivers an alert with a few retries, within a time limit.

A health check waits for its alerts, so the time for all tries is bounded. A ``Retry-After`` beyond
that limit is returned to the caller. Error messages never contain the text of a library, because it
quotes URLs and headers, which are secrets here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Set
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

import httpx2

from longshore.core.alerts import HealthNotice
from longshore.core.undelivered import UndeliveredNotice
from longshore.errors import AlertFailed
from longshore.ports.clock import Clock

DELIVERY_TIMEOUT = timedelta(seconds=20)
"""Time to deliver one alert, including all tries."""

# Commands in an alert for the operator; a test checks that they exist.
LIST_DEAD_LETTERS_COMMAND = "longshore dead list"
LIST_PARKED_TASKS_COMMAND = "longshore tasks --state parked"
ADD_BUDGET_COMMAND = "longshore budget add ID --usd N"

_MAX_TRIES = 4
_MAX_TRY = timedelta(seconds=5)
_MIN_TRY_S = 0.1
_FIRST_PAUSE = timedelta(seconds=0.5)
_MAX_RETRY_AFTER_S = 3600
_RETRYABLE_STATUSES = frozenset({408, 425, 429})

Notice = HealthNotice | UndeliveredNotice


@dataclass(eq=False)
class DeliveryFailed(Exception):
    """One try failed; ``retryable``: another may succeed."""

    reason: str
    retryable: bool
    retry_after: timedelta | None = None


# httpx2 logs every URL, and httpcore2 at level DEBUG the headers of answers: both may have secrets.
_sending: ContextVar[bool] = ContextVar("sending", default=False)
for _name in ("httpx2", "httpcore2.http11"):
    logging.getLogger(_name).addFilter(lambda _: not _sending.get())


def _failure_of(status: int, retry_after: str | None, error_code: str) -> DeliveryFailed:
    """The failure that a status means; ``error_code`` is safe to print."""
    if httpx2.codes.is_redirect(status):
        # The target of a redirect would receive the alert and the credentials.
        return DeliveryFailed(f"it redirects ({status}), which is not followed", retryable=False)
    reason = f"it answered {error_code} ({status})" if error_code else f"it answered {status}"
    retryable = status in _RETRYABLE_STATUSES or httpx2.codes.is_server_error(status)
    wait = _parse_retry_after(retry_after) if retryable else None
    return DeliveryFailed(reason, retryable=retryable, retry_after=wait)


def _parse_retry_after(retry_after: str | None) -> timedelta | None:
    """The requested wait, bounded; None if it is missing or a date."""
    text = (retry_after or "").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    return timedelta(seconds=min(int(text[:9]), _MAX_RETRY_AFTER_S))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class HttpAlerts:
    """See ``ports.alerts.Alerts``: posts each notice to a URL, which may contain a secret."""

    channel: str
    url: str
    clock: Clock
    encode: Callable[[Notice], bytes]
    headers: Callable[[bytes], Mapping[str, str]]  # of a body, for each try
    read_bytes: int = 0  # of an answer's body
    error_in: Callable[[str], str | None] = lambda _: None  # in a body; "" if it is unknown
    retryable_errors: Set[str] = frozenset()
    timeout: timedelta = DELIVERY_TIMEOUT

    async def send(self, notice: Notice) -> None:
        body = self.encode(notice)
        deadline = self.clock.elapsed() + self.timeout
        for number in itertools.count(1):
            try:
                await self._try_once(body, deadline)
                break
            except DeliveryFailed as error:
                pause = error.retry_after
                if pause is None:
                    pause = _FIRST_PAUSE * 2 ** (number - 1)
                too_late = number == _MAX_TRIES or self.clock.elapsed() + pause >= deadline
                if too_late or not error.retryable:
                    raise AlertFailed(self.channel, error.reason, error.retry_after) from None
            await self.clock.sleep(pause)

    async def _try_once(self, body: bytes, deadline: timedelta) -> None:
        left = min(_MAX_TRY, deadline - self.clock.elapsed()).total_seconds()
        sending = _sending.set(True)
        try:
            # The event loop's clock, because this waits for a socket.
            async with asyncio.timeout(max(left, _MIN_TRY_S)):
                response, text = await self._post(body)
        except (TimeoutError, httpx2.TimeoutException):
            raise DeliveryFailed("it did not answer in time", retryable=True) from None
        except (
            httpx2.UnsupportedProtocol,
            httpx2.InvalidURL,
            httpx2.LocalProtocolError,
            ValueError,
        ):
            raise DeliveryFailed("the request is not valid", retryable=False) from None
        except httpx2.TransportError as error:
            reason = f"it is unreachable ({type(error).__name__})"
            raise DeliveryFailed(reason, retryable=True) from None
        finally:
            _sending.reset(sending)
        code, status = self.error_in(text), response.status_code
        if not httpx2.codes.is_success(status):
            raise _failure_of(status, response.headers.get("Retry-After"), code or "")
        if code is not None:
            reason = f"it answered {code or 'an unknown error'}"
            raise DeliveryFailed(reason, retryable=code in self.retryable_errors)

    async def _post(self, body: bytes) -> tuple[httpx2.Response, str]:
        """The answer, and the beginning of its body."""
        received = bytearray()
        # Neither proxies nor .netrc.
        async with (
            httpx2.AsyncClient(trust_env=False) as client,
            client.stream("POST", self.url, content=body, headers=self.headers(body)) as response,
        ):
            if self.read_bytes:
                async for chunk in response.aiter_raw():
                    received += chunk
                    if len(received) >= self.read_bytes:
                        break
        return response, received[: self.read_bytes].decode(errors="replace")
