"""Segments: how output is stored in its table.

A task is a partition. A segment is an item ``{attempt}.{first}`` with a run of entries, and says
its ``last`` sequence. It is written under the condition that the item is new, and never changes.
An attempt has one writer, which appends in order: it starts a new segment only after the one before
is stored. An append that is repeated, perhaps with more entries, finds the existing segment and
continues behind it, so segments do not overlap and the first write of a sequence wins.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from longshore.adapters.aws.attributes import Item, number_attribute, string_attribute
from longshore.adapters.aws.tables import Query, Table
from longshore.adapters.shared.output_codec import (
    Run,
    entries_fitting,
    last_sequence_of,
    pack,
    unpack,
)
from longshore.ports.clock import Clock
from longshore.ports.output import OUTPUT_START, OutputPosition

MAX_SEQUENCE = 10**19 - 1
"""Sequences have 19 digits in a key."""

_LAST_POSITION = OutputPosition(MAX_SEQUENCE, MAX_SEQUENCE)
_SEGMENT_BYTES = 352 * 1024  # DynamoDB takes 400 KB
_FIRST_PAGE, _GROWTH = 2, 4  # segments: a short read should not pay for a megabyte


@dataclass(frozen=True)
class Segment:
    """Sequences ``first`` to ``last`` of an attempt."""

    attempt: int
    first: int
    last: int
    data: bytes

    @property
    def end(self) -> OutputPosition:
        return OutputPosition(self.attempt, self.last)

    @cached_property
    def entries(self) -> Run:
        return unpack(self.data, self.attempt, self.first)


def first_segment(run: Run) -> Segment:
    """A segment of the start of a run."""
    run = entries_fitting(run, _SEGMENT_BYTES)
    return Segment(run[0].attempt, run[0].sequence, last_sequence_of(run[-1]), pack(run))


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Reads and writes segments."""

    table: Table
    clock: Clock
    retention: timedelta | None

    async def put(self, task_id: str, segment: Segment) -> Segment | None:
        """Store a segment. Returns None, or the existing segment that starts with it."""
        position = OutputPosition(segment.attempt, segment.first)
        item: Item = {
            "task": string_attribute(task_id),
            "position": string_attribute(_position_key(position)),
            "last": number_attribute(segment.last),
            "data": {"B": segment.data},
        }
        if self.retention is not None:
            expires_at = self.clock.now() + self.retention
            item["ttl"] = number_attribute(int(expires_at.timestamp()))
        existing = await self.table.put(item, condition="attribute_not_exists(#position)")
        return None if existing is None else _segment_of(existing)

    async def last_segment(
        self,
        task_id: str,
        low: OutputPosition = OUTPUT_START,
        high: OutputPosition = _LAST_POSITION,
    ) -> Segment | None:
        """The last segment that starts between two positions."""
        segments, _ = await self.page(task_id, low, high, count=1, descending=True)
        return next(iter(segments), None)

    async def segments_from(
        self, task_id: str, begin: OutputPosition
    ) -> AsyncGenerator[Segment, None]:
        """All segments from this position on, in order.

        A query is not a snapshot: it may miss a segment that is stored while it runs, and return
        the next one. The hole between segments reveals that, and the page is read again. If the
        hole is still there, the table has expired the segment.
        """
        count, expired = _FIRST_PAGE, None
        while True:
            segments, more = await self.page(task_id, begin, count=count)
            for segment in segments:
                expected = begin.sequence if segment.attempt == begin.attempt else 1
                if segment.first != expected and begin != expired:
                    expired, more = begin, True
                    break
                yield segment
                begin = OutputPosition(segment.attempt, segment.last + 1)
            if not more:
                return
            count *= _GROWTH

    async def page(
        self,
        task_id: str,
        low: OutputPosition,
        high: OutputPosition = _LAST_POSITION,
        *,
        count: int,
        consistent: bool = True,
        descending: bool = False,
    ) -> tuple[list[Segment], bool]:
        """Some segments that start between two positions. Returns True if there may be more."""
        query = Query(
            partition=("task", task_id),
            sort="position",
            low=_position_key(low),
            high=_position_key(high),
            descending=descending,
            consistent=consistent,
            page_size=count,
        )
        items, more = await self.table.page(query)
        return [_segment_of(item) for item in items], more


def _position_key(position: OutputPosition) -> str:
    """A position as text with the same order."""
    return f"{min(position.attempt, MAX_SEQUENCE):019d}.{min(position.sequence, MAX_SEQUENCE):019d}"


def _segment_of(item: Item) -> Segment:
    attempt, _, first = item["position"]["S"].partition(".")
    return Segment(
        attempt=int(attempt),
        first=int(first),
        last=int(item["last"]["N"]),
        data=item["data"]["B"],
    )
