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

from longshore.adapters.aws.calls import Answer
from longshore.adapters.aws.queue_messages import Entry, size_of
from longshore.errors import BackendRejected, BackendUnavailable, OutcomeUnknown
from longshore.ports.clock import Clock

BATCH = 10
UNANSWERED = "unanswered"
"""Of an entry of which nothing is known, however often it was tried."""

# A request may be four times as large since 2025; so it is accepted everywhere.
_BATCH_BYTES = 256 * 1024
_AT_ONCE = 20
_PAUSES = (timedelta(milliseconds=100), timedelta(milliseconds=300))

_Kind = tuple[str, str, frozenset[str]]
# None of one that was done, else why not.
_Fate = str | BackendRejected | None


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What one caller wants done."""

    entries: Sequence[Entry]
    fates: asyncio.Future[list[_Fate]] = field(default_factory=asyncio.Future)


class Batches:
    """The batches of one process.

    Args:
        call: The answer of an operation on the queue of a name.
    """

    def __init__(self, call: Callable[..., Awaitable[Answer]], clock: Clock) -> None:
        self._call = call
        self._clock = clock
        self._waiting: dict[_Kind, list[_Part]] = {}
        self._under_way: Counter[_Kind] = Counter()
        self._requests = asyncio.Semaphore(_AT_ONCE)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def each(
        self, name: str, operation: str, entries: Sequence[Entry], *, final: frozenset[str]
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
        kind = (name, operation, final)
        part = _Part(entries)
        part.fates.add_done_callback(lambda fates: fates.exception())  # also if nobody waits
        self._waiting.setdefault(kind, []).append(part)
        self._go_on(kind)
        # Never cut off: others' entries may be in the same request.
        fates = await asyncio.shield(part.fates)
        refused = [fate for fate in fates if isinstance(fate, BackendRejected)]
        if len(refused) == len(fates):
            raise refused[0]
        return [fate if fate is None else str(fate) for fate in fates]

    def _go_on(self, kind: _Kind) -> None:
        """Send what waits, unless it is little and something is on its way."""
        waiting = self._waiting.get(kind, [])
        if waiting and (
            not self._under_way[kind] or sum(len(part.entries) for part in waiting) >= BATCH
        ):
            self._under_way[kind] += 1
            task = asyncio.create_task(self._send(kind, self._waiting.pop(kind)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, kind: _Kind, parts: list[_Part]) -> None:
        try:
            entries = [entry for part in parts for entry in part.entries]
            answers = await asyncio.gather(
                *(self._batch(kind, batch) for batch in _batches(entries))
            )
            fates = iter([fate for answer in answers for fate in answer])
            for part in parts:
                part.fates.set_result([next(fates) for _ in part.entries])
        except BaseException as error:
            for part in parts:
                if not part.fates.done():
                    part.fates.set_exception(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._under_way[kind] -= 1
            self._go_on(kind)

    async def _batch(self, kind: _Kind, entries: Sequence[Entry]) -> list[_Fate]:
        name, operation, final = kind
        fates: dict[int, str | None] = {}
        unheard = False
        for pause in (*_PAUSES, None):
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
    bytes_left = _BATCH_BYTES
    for entry in entries:
        size = size_of(entry)
        if part and (len(part) == BATCH or size > bytes_left):
            yield part
            part, bytes_left = [], _BATCH_BYTES
        part.append(entry)
        bytes_left -= size
    if part:
        yield part
