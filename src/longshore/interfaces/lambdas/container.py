"""What a function keeps between its invocations: an event loop, and what was wired on it.

AWS keeps the process of a function for its next invocations, so all that takes long is done once.
Between two invocations the process is frozen: whatever an invocation leaves running would go on in
the midst of the next one, and is called off at its end. When an invocation has broken the loop, or
something will not be called off, all of it is thrown away and built anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, Protocol, TypeVar

from longshore.interfaces.cli import log_records

logger = logging.getLogger(__name__)

T = TypeVar("T")
ResultT = TypeVar("ResultT")

# Of the time that AWS gives, so much is left for calling off what is late, and for the answer.
_MARGIN_S = 1.5
_MIN_TIMEOUT_S = 0.1
_CANCEL_TIMEOUT_S = 0.5
_CLOSE_TIMEOUT_S = 2.0


class LambdaContext(Protocol):
    """What AWS tells of an invocation."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """How long until it is cut off."""
        ...


class InvocationTimeout(Exception):
    """An invocation was ended in good time before AWS would have cut it off."""


class Container(Generic[T]):
    """The process of one function. ``opens`` gives what its invocations work with."""

    def __init__(self, open_resources: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_resources = open_resources
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._resources: T | None = None
        self._has_leftover_tasks = False

    def run(self, work: Callable[[T], Awaitable[ResultT]], context: LambdaContext) -> ResultT:
        """What comes of the work.

        Raises:
            OutOfTime: there was not enough time.
        """
        _set_log_invocation(context.aws_request_id)
        if self._runner is None or self._runner.get_loop().is_closed():
            self._reset()
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(self._run_with_timeout(work, seconds_left(context)))
        except Exception:
            raise
        except BaseException:
            # Nobody knows in what state the loop is.
            self.close()
            raise
        finally:
            if self._has_leftover_tasks:
                logger.error("container.discarded")
                self.close()

    async def _run_with_timeout(
        self, work: Callable[[T], Awaitable[ResultT]], seconds: float
    ) -> ResultT:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await work(await self._open())
        except TimeoutError as error:
            if not limit.expired():
                raise
            message = f"it was not done in {seconds:.1f} s; what is left is for the next invocation"
            raise InvocationTimeout(message) from error
        finally:
            self._has_leftover_tasks = not await _cancel_other_tasks()

    async def _open(self) -> T:
        if self._resources is None:
            # What is half open when this fails is closed again at once.
            async with AsyncExitStack() as opening:
                self._resources = await opening.enter_async_context(self._open_resources())
                self._stack = opening.pop_all()
        return self._resources

    def close(self) -> None:
        """Close all of it, as far as that can be; the next invocation builds it anew."""
        runner, stack = self._runner, self._stack
        self._reset()
        if runner is None:
            return
        calm = False
        with contextlib.suppress(Exception):
            calm = runner.run(_close_stack(stack))
        with contextlib.suppress(Exception):
            # A runner waits for ever for what will not be called off.
            (runner if calm else runner.get_loop()).close()

    def _reset(self) -> None:
        self._runner, self._resources, self._stack = None, None, AsyncExitStack()
        self._has_leftover_tasks = False


def seconds_left(context: LambdaContext) -> float:
    """How long the work of an invocation may take."""
    return max(context.get_remaining_time_in_millis() / 1000 - _MARGIN_S, _MIN_TIMEOUT_S)


async def _cancel_other_tasks() -> bool:
    """Call off whatever else runs; whether it has ended."""
    late = asyncio.all_tasks() - {asyncio.current_task()}
    for one in late:
        one.cancel()
    if late:
        await asyncio.wait(late, timeout=_CANCEL_TIMEOUT_S)
    return all(one.done() for one in late)


async def _close_stack(stack: AsyncExitStack) -> bool:
    """Close what was opened; whether nothing runs any more."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await stack.aclose()
    finally:
        calm = await _cancel_other_tasks()
    return calm


class _InvocationFilter(logging.Filter):
    """Puts the invocation's id into every record."""

    invocation = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.invocation = self.invocation
        return True


_invocation_filter = _InvocationFilter()


def _set_log_invocation(invocation: str) -> None:
    """Send records to where AWS takes them from, as JSON, with the invocation's id."""
    _invocation_filter.invocation = invocation
    handlers: list[Any] = logging.getLogger().handlers
    if not any(_invocation_filter in handler.filters for handler in handlers):
        log_records.configure_logging(level=logging.INFO, style="json")
        for handler in logging.getLogger().handlers:
            handler.addFilter(_invocation_filter)
