"""Segments: how output is stored in its table.

A task is a partition. A segment is an item ``{attempt}.{first}`` with a run of entries, and says
its ``last`` sequence. It is written under the condition that the item is new, and never changes.
An attempt has one writer, which appends in order: it starts a new segment only after the one before
is stored. An append that is repeated, perhaps with more entries, finds the existing segment and
continues behind it, so segments do not overlap and the first write of a sequence wins.

An entry that is too large for a segment is stored in parts, in a partition of its own that is named
by their digest. The parts are written before the segment, and writing them again changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property

from longshore.adapters.aws.attributes import Item, number_attribute, string_attribute
from longshore.adapters.aws.tables import Query, Table
from longshore.adapters.shared.output_codec import (
    ENTRY_BYTES,
    Run,
    compress,
    decompress,
    entries_fitting,
    last_sequence_of,
    pack,
    unpack,
)
from longshore.ports.clock import Clock
from longshore.ports.output import OUTPUT_START, OutputChunk, OutputPosition, Stream

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
    parts: int = 0  # the number of items, if its only entry is stored in parts
    digest: str = ""

    @property
    def end(self) -> OutputPosition:
        return OutputPosition(self.attempt, self.last)

    @cached_property
    def entries(self) -> Run:
        """The entries; an entry that is stored in parts is without its data."""
        return unpack(self.data, self.attempt, self.first)


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Reads and writes segments."""

    table: Table
    clock: Clock
    retention: timedelta | None

    async def build(self, task_id: str, run: Run) -> Segment:
        """A segment of the start of a run; stores the parts of an entry that is too large."""
        run = entries_fitting(run, _SEGMENT_BYTES)
        entry, last = run[0], last_sequence_of(run[-1])
        if len(entry.data) <= _SEGMENT_BYTES - ENTRY_BYTES:
            return Segment(entry.attempt, entry.sequence, last, pack(run))
        data = await asyncio.to_thread(compress, entry.data)
        parts = [data[at : at + _SEGMENT_BYTES] for at in range(0, len(data), _SEGMENT_BYTES)]
        head = pack([replace(entry, data=b"")])
        digest = hashlib.sha256(data).hexdigest()[:32]
        segment = Segment(entry.attempt, entry.sequence, last, head, len(parts), digest)
        partition = _parts_partition(task_id, segment)
        for number, part in enumerate(parts):
            item = self._item(partition, f"{number:06d}", part)
            await self.table.put(item)
        return segment

    async def put(self, task_id: str, segment: Segment) -> Segment | None:
        """Store a segment. Returns None, or the existing segment that starts with it."""
        position = _position_key(OutputPosition(segment.attempt, segment.first))
        item = self._item(task_id, position, segment.data)
        item["last"] = number_attribute(segment.last)
        if segment.parts:
            item["parts"] = number_attribute(segment.parts)
            item["digest"] = string_attribute(segment.digest)
        existing = await self.table.put(item, condition="attribute_not_exists(#position)")
        return None if existing is None else _segment_of(existing)

    def _item(self, partition: str, position: str, data: bytes) -> Item:
        item: Item = {
            "task": string_attribute(partition),
            "position": string_attribute(position),
            "data": {"B": data},
        }
        if self.retention is not None:
            expires_at = self.clock.now() + self.retention
            item["ttl"] = number_attribute(int(expires_at.timestamp()))
        return item

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
        items, last = await self.table.page(query)
        return [_segment_of(item) for item in items], last is not None

    async def join_parts(self, task_id: str, segment: Segment) -> OutputChunk:
        """The entry of a segment that is stored in parts."""
        (entry,) = segment.entries
        query = Query(partition=("task", _parts_partition(task_id, segment)))
        parts = [item["data"]["B"] async for item in self.table.query(query)]
        if len(parts) < segment.parts:
            # All parts were stored before the segment, so the table has begun to expire them.
            return replace(entry, stream=Stream.LOST, last=segment.last)
        return replace(entry, data=await asyncio.to_thread(decompress, b"".join(parts)))


def _position_key(position: OutputPosition) -> str:
    """A position as text with the same order."""
    return f"{min(position.attempt, MAX_SEQUENCE):019d}.{min(position.sequence, MAX_SEQUENCE):019d}"


def _parts_partition(task_id: str, segment: Segment) -> str:
    # A task id has no "#".
    return f"{task_id}#{segment.attempt}.{segment.first}.{segment.digest}"


def _segment_of(item: Item) -> Segment:
    attempt, _, first = item["position"]["S"].partition(".")
    return Segment(
        attempt=int(attempt),
        first=int(first),
        last=int(item["last"]["N"]),
        data=item["data"]["B"],
        parts=int(item["parts"]["N"]) if "parts" in item else 0,
        digest=item["digest"]["S"] if "digest" in item else "",
    )
