"""Records of a batch: those that failed are answered, and come again; all others are done.

An answer names what failed and nothing else, so a record counts as failed until it is known to be
done: also when time was over, or nothing was begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from longshore.errors import BackendUnavailable, UsageError
from longshore.interfaces.lambdas.container import Container, InvocationTimeout, LambdaContext

logger = logging.getLogger(__name__)

T = TypeVar("T")
ReadT = TypeVar("ReadT")
Record = Mapping[str, Any]
BatchResponse = dict[str, list[dict[str, str]]]

_CONCURRENCY = 10


def records_of(event: Any) -> Sequence[Record]:
    """The records of a batch.

    Raises:
        UsageError: it is none.
    """
    records = event.get("Records") if isinstance(event, dict) else None
    if not isinstance(records, list):
        message = "expected an event of an event source mapping, with a list of Records"
        raise UsageError(message)
    return records


def failure_response(ids: Collection[str]) -> BatchResponse:
    """The answer to a mapping: these come again."""
    return {"batchItemFailures": [{"itemIdentifier": one} for one in ids]}


def process_each(
    container: Container[T],
    event: Any,
    context: LambdaContext,
    process: Callable[[T, Record], Awaitable[object]],
) -> BatchResponse:
    """Deal with the records of a queue side by side, each by itself."""
    records = {record["messageId"]: record for record in records_of(event)}
    done: set[str] = set()
    gate = asyncio.Semaphore(_CONCURRENCY)

    async def one(wired: T, message_id: str) -> None:
        async with gate:
            try:
                await process(wired, records[message_id])
            except Exception as error:  # noqa: BLE001 - the edge of one record
                _log_failure(message_id, error)
            else:
                done.add(message_id)

    async def all_of_them(wired: T) -> None:
        await asyncio.gather(*(one(wired, message_id) for message_id in records))

    _run(container, all_of_them, context)
    return failure_response([one for one in records if one not in done])


def process_together(
    container: Container[T],
    event: Any,
    context: LambdaContext,
    read: Callable[[T, Record], ReadT],
    process: Callable[[T, Mapping[str, ReadT]], Awaitable[Collection[str]]],
) -> BatchResponse:
    """Deal with all records of a queue at once.

    Args:
        read: What a record holds; one that raises UsageError comes again, until its queue gives it
            up and it is looked after as undelivered.
        process: Gets them by the ids of their messages, and says which must come again.
    """
    records = {record["messageId"]: record for record in records_of(event)}
    done: set[str] = set()

    async def all_of_them(wired: T) -> None:
        readable: dict[str, ReadT] = {}
        for message_id, record in records.items():
            try:
                readable[message_id] = read(wired, record)
            except UsageError as error:
                _log_failure(message_id, error)
        failed = await process(wired, readable)
        done.update(readable.keys() - failed)

    _run(container, all_of_them, context)
    return failure_response([one for one in records if one not in done])


def _run(
    container: Container[T], work: Callable[[T], Awaitable[None]], context: LambdaContext
) -> None:
    try:
        container.run(work, context)
    except InvocationTimeout as error:
        logger.warning("batch.timed_out", extra={"error": str(error)})


def _log_failure(message_id: str, error: Exception) -> None:
    about = {"message_id": message_id, "error": str(error)}
    if isinstance(error, BackendUnavailable | UsageError):
        logger.warning("record.failed", extra=about)
    else:
        logger.error("record.failed", extra=about, exc_info=error)
