"""Output as runs and as bytes, for stores that keep many entries in one item.

A run is a list of entries of one attempt without a gap, so that only its first sequence is stored.
A marker of lost output covers a range of sequences; if a part of that range is stored already, the
rest of it is a marker too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from operator import attrgetter

import msgspec

from longshore.adapters.shared.codec import from_us, to_us
from longshore.ports.output import OutputChunk, Stream

Run = list[OutputChunk]
_Row = tuple[int, int, bytes, int | None]

# A stream is stored by its number: add new ones at the end.
STREAMS = (Stream.STDOUT, Stream.STDERR, Stream.LOG, Stream.LOST)
STREAM_NUMBERS = {stream: number for number, stream in enumerate(STREAMS)}
_ENTRY_BYTES = 32  # the maximum size of an entry without its data
_PLAIN, _DEFLATED = b"\x00", b"\x01"
_COMPRESSION_LEVEL = (
    1  # zlib's level: text becomes a fifth, and a megabyte takes a few milliseconds
)

_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[_Row]).decode


def last_sequence_of(entry: OutputChunk) -> int:
    """The last sequence that an entry covers, even if its ``last`` is not valid."""
    return max(entry.sequence, entry.end)


def runs_of(entries: Iterable[OutputChunk]) -> list[Run]:
    """The entries as sorted runs; of several with the same sequence the first counts."""
    runs: list[Run] = []
    for entry in sorted(entries, key=attrgetter("attempt", "sequence")):
        last = runs[-1][-1] if runs else None
        if (
            last is None
            or last.attempt != entry.attempt
            or last_sequence_of(last) + 1 < entry.sequence
        ):
            runs.append([entry])
        else:
            runs[-1] += entries_after([entry], last_sequence_of(last))
    return runs


def entries_after(run: Sequence[OutputChunk], sequence: int) -> Run:
    """The entries of a run after a sequence."""
    return [
        entry if entry.sequence > sequence else replace(entry, sequence=sequence + 1)
        for entry in run
        if last_sequence_of(entry) > sequence
    ]


def entries_fitting(run: Sequence[OutputChunk], max_bytes: int) -> Run:
    """The first entries of a run that fit into so many bytes; at least one."""
    size = 0
    for count, entry in enumerate(run):
        size += len(entry.data) + _ENTRY_BYTES
        if count and size > max_bytes:
            return list(run[:count])
    return list(run)


def pack(run: Sequence[OutputChunk]) -> bytes:
    """A run as bytes."""
    rows: list[_Row] = []
    at_us = 0
    for entry in run:
        now_us = to_us(entry.at)
        rows.append((now_us - at_us, STREAM_NUMBERS[entry.stream], entry.data, entry.last))
        at_us = now_us
    data = _encode(rows)
    smaller = zlib.compress(data, _COMPRESSION_LEVEL)
    return _DEFLATED + smaller if len(smaller) < len(data) else _PLAIN + data


def unpack(packed: bytes, attempt: int, first: int) -> Run:
    """The inverse of ``pack``, for a run that begins with this sequence."""
    run: Run = []
    at_us, sequence = 0, first
    body = packed[1:]
    rows = zlib.decompress(body) if packed[:1] == _DEFLATED else body
    for since_us, number, data, last in _decode_rows(rows):
        at_us += since_us
        entry = OutputChunk(
            attempt=attempt,
            sequence=sequence,
            at=from_us(at_us),
            stream=STREAMS[number],
            data=data,
            last=last,
        )
        run.append(entry)
        sequence = last_sequence_of(entry) + 1
    return run
