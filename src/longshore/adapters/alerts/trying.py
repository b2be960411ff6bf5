"""Trying to deliver an alert, a few times and not for long.

A health check waits for its alerts, so the time for all tries of one is bounded, whatever a server
asks for: a ``Retry-After`` beyond it is handed on to the caller. What goes wrong is told in our
words alone. The texts of libraries quote addresses and headers, and those are secrets here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import tenacity

from longshore.errors import AlertFailed
from longshore.ports.clock import Clock

WITHIN = timedelta(seconds=20)
"""How long delivering one alert may take, with all its tries."""

_TRIES = 4
_LONGEST_TRY = timedelta(seconds=5)
_SHORTEST_TRY_S = 0.1
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 4.0
_LONGEST_RETRY_AFTER_S = 3600
_TOO_MANY = 429
_MAY_PASS = frozenset({408, 425, _TOO_MANY})
_SERVER_ERRORS = range(500, 600)
_REDIRECTS = range(300, 400)

Call = Callable[[float], Awaitable[None]]
"""One try that may take so many seconds. Raises NotAccepted."""


class NotAccepted(Exception):
    """One try did not succeed; ``may_pass``: another might."""

    def __init__(
        self, reason: str, *, may_pass: bool, retry_after: timedelta | None = None
    ) -> None:
        self.reason = reason
        self.may_pass = may_pass
        self.retry_after = retry_after
        super().__init__(reason)


def by_status(status: int, retry_after: str | None, said: str = "") -> NotAccepted:
    """What an answer with this status means; ``said`` is the server's own word if it is safe."""
    if status in _REDIRECTS:
        # Whoever can redirect us would be handed what we send, and our credentials.
        return NotAccepted(f"it redirects ({status}), which is not followed", may_pass=False)
    reason = f"it answered {said} ({status})" if said else f"it answered {status}"
    may_pass = status in _MAY_PASS or status in _SERVER_ERRORS
    wanted = _seconds_in(retry_after) if may_pass else None
    return NotAccepted(reason, may_pass=may_pass, retry_after=wanted)


def _seconds_in(retry_after: str | None) -> timedelta | None:
    """The wait that was asked for, bounded; the form with a date is as good as none."""
    text = (retry_after or "").strip()
    # The first digits of a number too long to convert are enough to see that it is too long.
    if not (text.isascii() and text.isdigit()):
        return None
    return timedelta(seconds=min(int(text[:9]), _LONGEST_RETRY_AFTER_S))


class Tries:
    """The tries of one channel."""

    def __init__(self, channel: str, clock: Clock, *, within: timedelta = WITHIN) -> None:
        self._channel = channel
        self._clock = clock
        self._within = within

    async def until_accepted(self, call: Call) -> None:
        """Call until it succeeds, or no try is left, or no time.

        Raises:
            AlertFailed: it did not succeed.
        """
        deadline = self._clock.elapsed() + self._within

        def enough(state: tenacity.RetryCallState) -> bool:
            next_try = self._clock.elapsed() + timedelta(seconds=state.upcoming_sleep)
            return state.attempt_number >= _TRIES or next_try >= deadline

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=enough,
            wait=_pause,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            await retrying(self._one_try, call, deadline)
        except NotAccepted as error:
            raise AlertFailed(self._channel, error.reason, error.retry_after) from None

    async def _one_try(self, call: Call, deadline: timedelta) -> None:
        left = min(_LONGEST_TRY, deadline - self._clock.elapsed()).total_seconds()
        left = max(left, _SHORTEST_TRY_S)
        try:
            # The loop's own clock: what is waited for here is a socket.
            async with asyncio.timeout(left):
                await call(left)
        except TimeoutError:
            raise NotAccepted("it did not answer in time", may_pass=True) from None

    async def _sleep(self, seconds: float) -> None:
        await self._clock.sleep(timedelta(seconds=seconds))


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, NotAccepted) and error.may_pass


def _pause(state: tenacity.RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, NotAccepted) and error.retry_after is not None:
        return error.retry_after.total_seconds()
    doubled: float = _FIRST_PAUSE_S * 2 ** (state.attempt_number - 1)
    return min(doubled, _LONGEST_PAUSE_S)
