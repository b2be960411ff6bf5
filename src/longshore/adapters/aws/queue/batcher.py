"""Entries for SQS, as few requests as may be, and an answer for each.

Requests take ten entries, and callers mostly have one. So whoever comes while a request of the same
kind is on its way goes with the next one, together with all others who came meanwhile; nobody waits
for that longer than one request takes, and who comes alone does not wait at all.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from longshore.adapters.aws.client import AwsResponse
from longshore.adapters.aws.queue.messages import Entry, entry_size
from longshore.errors import BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.clock import Clock

BATCH_SIZE = 10
UNANSWERED = "unanswered"
"""Of an entry of which nothing is known, however often it was tried."""

# A request may be four times as large since 2025; so it is accepted everywhere.
_BATCH_LIMIT_BYTES = 256 * 1024
_CONCURRENT_REQUESTS = 20
_BACKOFF = (timedelta(milliseconds=100), timedelta(milliseconds=300))

_BatchKey = tuple[str, str, frozenset[str]]
# None of one that was done, else why not.
_EntryResult = str | BackendRejected | None


@dataclass(frozen=True, slots=True, eq=False)
class _PendingEntries:
    """What one caller wants done."""

    entries: Sequence[Entry]
    results: asyncio.Future[list[_EntryResult]] = field(default_factory=asyncio.Future)


class Batcher:
    """The batches of one process.

    Args:
        call: The answer of an operation on the queue of a name.
    """

    def __init__(self, call: Callable[..., Awaitable[AwsResponse]], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._pending: dict[_BatchKey, list[_PendingEntries]] = {}
        self._in_flight: Counter[_BatchKey] = Counter()
        self._requests = asyncio.Semaphore(_CONCURRENT_REQUESTS)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self, name: str, operation: str, entries: Sequence[Entry], *, final_codes: frozenset[str]
    ) -> list[str | None]:
        """What became of each entry: None of one that was done, else why not.

        Args:
            final: Codes that will not change by trying again; entries with others are tried again a
                few times, and are ``UNANSWERED`` at last.

        Raises:
            NotDeployed: there is no such queue.
            BackendRejected: not one of them was even looked at.
        """
        if not entries:
            return []
        kind = (name, operation, final_codes)
        part = _PendingEntries(entries)
        part.results.add_done_callback(lambda fates: fates.exception())  # also if nobody waits
        self._pending.setdefault(kind, []).append(part)
        self._send_pending(kind)
        # Never cut off: others' entries may be in the same request.
        fates = await asyncio.shield(part.results)
        refused = [fate for fate in fates if isinstance(fate, BackendRejected)]
        if len(refused) == len(fates):
            raise refused[0]
        return [fate if fate is None else str(fate) for fate in fates]

    def _send_pending(self, key: _BatchKey) -> None:
        """Send what waits, unless it is little and something is on its way."""
        waiting = self._pending.get(key, [])
        if waiting and (
            not self._in_flight[key] or sum(len(part.entries) for part in waiting) >= BATCH_SIZE
        ):
            self._in_flight[key] += 1
            task = asyncio.create_task(self._send(key, self._pending.pop(key)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, key: _BatchKey, parts: list[_PendingEntries]) -> None:
        try:
            entries = [entry for part in parts for entry in part.entries]
            answers = await asyncio.gather(
                *(self._send_batch(key, batch) for batch in _batches(entries))
            )
            fates = iter([fate for answer in answers for fate in answer])
            for part in parts:
                part.results.set_result([next(fates) for _ in part.entries])
        except BaseException as error:
            for part in parts:
                if not part.results.done():
                    part.results.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._in_flight[key] -= 1
            self._send_pending(key)

    async def _send_batch(self, key: _BatchKey, entries: Sequence[Entry]) -> list[_EntryResult]:
        name, operation, final = key
        fates: dict[int, str | None] = {}
        unheard = False
        for pause in (*_BACKOFF, None):
            left = [number for number in range(len(entries)) if number not in fates]
            asked = [{**entries[number], "Id": str(number)} for number in left]
            try:
                async with self._requests:
                    answer = await self._call(name, operation, alters=True, Entries=asked)
            except BackendUnavailable as error:
                unheard = unheard or isinstance(error, OutcomeUnknown)
            except BackendRejected as error:
                return [error] * len(entries)
            else:
                fates |= {int(done["Id"]): None for done in answer.get("Successful", ())}
                for failed in answer.get("Failed", ()):
                    if failed["Code"] in final:
                        # Who asked to remove it and did not hear the answer has removed it.
                        gone = unheard and operation == "delete_message_batch"
                        fates[int(failed["Id"])] = None if gone else failed["Code"]
            if len(fates) == len(entries) or pause is None:
                break
            await self._clock.sleep(pause)
        return [fates.get(number, UNANSWERED) for number in range(len(entries))]


def _batches(entries: Sequence[Entry]) -> Iterator[list[Entry]]:
    """As many at a time as SQS takes."""
    part: list[Entry] = []
    bytes_left = _BATCH_LIMIT_BYTES
    for entry in entries:
        size = entry_size(entry)
        if part and (len(part) == BATCH_SIZE or size > bytes_left):
            yield part
            part, bytes_left = [], _BATCH_LIMIT_BYTES
        part.append(entry)
        bytes_left -= size
    if part:
        yield part
