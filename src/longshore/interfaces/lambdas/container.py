"""The container of a Lambda function: its event loop, its resources, and batches of records.

AWS reuses the process of a function for later invocations, so resources are opened once. Between
two invocations the process is frozen. Tasks that an invocation leaves running would continue during
the next one, so they are cancelled at its end. If an invocation broke the loop, or a task cannot be
cancelled, the container is discarded and the next invocation builds a new one.

A batch response names the records that failed; AWS delivers those again. A record counts as failed
until it is done, so also after a timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, Protocol, TypeVar

from longshore.errors import BackendUnavailable, UsageError
from longshore.interfaces.cli import log_records

logger = logging.getLogger(__name__)

T = TypeVar("T")
ResultT = TypeVar("ResultT")
ContentT = TypeVar("ContentT")
Record = Mapping[str, Any]
Answer = dict[str, Any]

_CONCURRENT_RECORDS = 10
# Reserved at the end of an invocation to cancel tasks and to answer.
_MARGIN_S = 1.5
_MIN_TIMEOUT_S = 0.1
_CANCEL_TIMEOUT_S = 0.5
_CLOSE_TIMEOUT_S = 2.0


class LambdaContext(Protocol):
    """The context that AWS passes to a handler."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """Time until AWS kills the invocation."""
        ...


class InvocationTimeout(Exception):
    """The invocation was ended shortly before AWS would have killed it."""


class Container(Generic[T]):
    """The event loop of one function, and the resources that its invocations share."""

    def __init__(self, open_resources: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open_resources = open_resources
        self._runner: asyncio.Runner | None = None
        self._stack = AsyncExitStack()
        self._resources: T | None = None

    def run(self, work: Callable[[T], Awaitable[ResultT]], context: LambdaContext) -> ResultT:
        """Run one invocation.

        Raises:
            InvocationTimeout: there was not enough time.
        """
        _set_log_invocation(context.aws_request_id)
        if self._runner is None or self._runner.get_loop().is_closed():
            self._reset()
            self._runner = asyncio.Runner()
        try:
            seconds = max(context.get_remaining_time_in_millis() / 1000 - _MARGIN_S, _MIN_TIMEOUT_S)
            return self._runner.run(self._run_with_timeout(work, seconds))
        except Exception:
            raise
        except BaseException:
            # The state of the loop is unknown.
            self.close()
            raise
        finally:
            if self._runner is not None and not self._runner.run(_cancel_other_tasks()):
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
            message = f"not finished within {seconds:.1f} s; the next invocation continues"
            raise InvocationTimeout(message) from error

    async def _open(self) -> T:
        if self._resources is None:
            # If this fails, the resources that are open already are closed.
            async with AsyncExitStack() as opening:
                self._resources = await opening.enter_async_context(self._open_resources())
                self._stack = opening.pop_all()
        return self._resources

    def close(self) -> None:
        """Close everything; the next invocation opens it again."""
        runner, stack = self._runner, self._stack
        self._reset()
        if runner is None:
            return
        idle = False
        with contextlib.suppress(Exception):
            idle = runner.run(_close_stack(stack))
        with contextlib.suppress(Exception):
            # A runner would wait forever for a task that cannot be cancelled.
            (runner if idle else runner.get_loop()).close()

    def _reset(self) -> None:
        self._runner, self._resources, self._stack = None, None, AsyncExitStack()


async def _cancel_other_tasks() -> bool:
    """Cancel all other tasks. Returns True if they have ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CANCEL_TIMEOUT_S)
    return all(task.done() for task in others)


async def _close_stack(stack: AsyncExitStack) -> bool:
    """Close the resources. Returns True if no task is left."""
    try:
        async with asyncio.timeout(_CLOSE_TIMEOUT_S):
            await stack.aclose()
    finally:
        idle = await _cancel_other_tasks()
    return idle


class _InvocationFilter(logging.Filter):
    """Adds the id of the invocation to every log record."""

    invocation = ""

    def filter(self, record: logging.LogRecord) -> bool:
        record.invocation = self.invocation
        return True


_invocation_filter = _InvocationFilter()


def _set_log_invocation(invocation: str) -> None:
    """Log as JSON, with the id of the invocation."""
    _invocation_filter.invocation = invocation
    handlers: list[Any] = logging.getLogger().handlers
    if not any(_invocation_filter in handler.filters for handler in handlers):
        log_records.configure_logging(level=logging.INFO, style="json")
        for handler in logging.getLogger().handlers:
            handler.addFilter(_invocation_filter)


# Handlers ---------------------------------------------------------------------------------------

CONTAINERS: dict[str, Container[Any]] = {}
"""The container of each handler, by the handler's name."""


def handler(
    open_resources: Callable[[], AbstractAsyncContextManager[T]],
    *,
    read: Callable[[Any], Any] = lambda event: event,
    after_timeout: Callable[[Any], Answer] | None = None,
) -> Callable[[Callable[[T, Any], Awaitable[Answer]]], Callable[[Any, LambdaContext], Answer]]:
    """Make a Lambda handler of a function that gets resources and the event of an invocation.

    Args:
        read: Returns what the function gets instead of the event.
        after_timeout: Answers, from the same, if the time was too short; None: the invocation
            fails.
    """

    def decorate(
        handle: Callable[[T, Any], Awaitable[Answer]],
    ) -> Callable[[Any, LambdaContext], Answer]:
        container = CONTAINERS[handle.__name__] = Container(open_resources)

        @functools.wraps(handle)
        def invoke(event: Any, context: LambdaContext) -> Answer:
            content = read(event)
            try:
                return container.run(lambda resources: handle(resources, content), context)
            except InvocationTimeout as error:
                if after_timeout is None:
                    raise
                logger.warning("invocation.timed_out", extra={"error": str(error)})
                return after_timeout(content)

        return invoke

    return decorate


class Batch:
    """Records of a queue, by message id. Those that are not done are delivered again."""

    def __init__(self, event: Any) -> None:
        self.records = {record["messageId"]: record for record in records_of(event)}
        self.done: set[str] = set()

    def answer(self) -> Answer:
        """The response after which AWS delivers the records again that are not done."""
        return failure_response([name for name in self.records if name not in self.done])

    async def process_each(self, process: Callable[[Record], Awaitable[object]]) -> None:
        """Process the records concurrently and independently."""
        slots = asyncio.Semaphore(_CONCURRENT_RECORDS)

        async def process_record(message_id: str, record: Record) -> None:
            async with slots:
                with _log_failure(message_id):
                    await process(record)
                    self.done.add(message_id)

        await asyncio.gather(*(process_record(*item) for item in self.records.items()))

    def read(self, read: Callable[[Record], ContentT]) -> dict[str, ContentT]:
        """The contents of the records that can be read.

        The others are delivered again, until the queue gives up and moves them to the undelivered
        events.
        """
        contents: dict[str, ContentT] = {}
        for message_id, record in self.records.items():
            with _log_failure(message_id):
                contents[message_id] = read(record)
        return contents


@contextlib.contextmanager
def _log_failure(message_id: str) -> Iterator[None]:
    """Log the error of a record, which must not fail the others."""
    try:
        yield
    except Exception as error:
        extra = {"message_id": message_id, "error": str(error)}
        if isinstance(error, BackendUnavailable | UsageError):
            logger.warning("record.failed", extra=extra)
        else:
            logger.exception("record.failed", extra=extra)


def records_of(event: Any) -> Sequence[Record]:
    """The records of a batch.

    Raises:
        UsageError: the event is not a batch.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        raise UsageError("expected an event of an event source mapping, with a list of Records")
    return records


def failure_response(ids: Iterable[str]) -> Answer:
    """The response after which AWS delivers these records again."""
    return {"batchItemFailures": [{"itemIdentifier": record_id} for record_id in ids]}
