"""The functions that the tasks of every peer call, and the file in which they record what ran.

Standard library only, because every peer's environment imports this module. A body appends one
record of fixed size to a file. Rates, latencies and losses are computed from that file, never from
a peer's own bookkeeping. All processes of a Linux machine share CLOCK_MONOTONIC.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

FOLDER_VARIABLE = "BENCH_FOLDER"
BEGIN, END, JOIN = b"B", b"E", b"J"
_LAYOUT = struct.Struct("=cidi")
RECORD_BYTES = _LAYOUT.size
_RECORDS = "records.bin"
_descriptors: dict[str, int] = {}


class Record(NamedTuple):
    """One line of the file: what happened to which task, when, in which process."""

    kind: bytes
    number: int
    at_s: float
    process_id: int


def folder() -> Path:
    """The folder of this measurement."""
    return Path(os.environ[FOLDER_VARIABLE])


def records_file(parent: Path) -> Path:
    """The file in which the bodies of a measurement record what ran."""
    return parent / _RECORDS


def read_records(parent: Path) -> list[Record]:
    """All complete records."""
    data = records_file(parent).read_bytes()
    whole = data[: len(data) // RECORD_BYTES * RECORD_BYTES]
    return [Record(*fields) for fields in _LAYOUT.iter_unpack(whole)]


def record(kind: bytes, number: int) -> None:
    """Append a record; costs about two microseconds."""
    parent = os.environ[FOLDER_VARIABLE]
    if parent not in _descriptors:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        # Without `Path`: where each task has a process, that would cost more than the task.
        _descriptors[parent] = os.open(f"{parent}/{_RECORDS}", flags, 0o666)
    fields = _LAYOUT.pack(kind, int(number), time.monotonic(), os.getpid())
    os.write(_descriptors[parent], fields)


def noop(number: int) -> None:
    record(BEGIN, number)


def print_line(number: int) -> None:
    print(f"this is the line of task {number}", flush=True)
    record(BEGIN, number)


def fail_once(number: int) -> None:
    """Fail in the first attempt with an error that every peer retries."""
    try:
        os.close(os.open(folder() / "failed" / str(number), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        record(BEGIN, number)
        return
    message = "the first attempt fails"
    raise ConnectionError(message)


def sleep_200ms(number: int) -> None:
    record(BEGIN, number)
    time.sleep(0.2)
    record(END, number)


def sleep_1s(number: int) -> None:
    record(BEGIN, number)
    time.sleep(1.0)
    record(END, number)


def join(*_results: object) -> None:
    record(JOIN, 0)


BODIES: dict[str, Callable[[int], None]] = {
    body.__name__: body for body in (noop, print_line, fail_once, sleep_200ms, sleep_1s)
}
_SLEEPS_S = {"sleep_200ms": 0.2, "sleep_1s": 1.0}


def _as_coroutine(name: str, body: Callable[[int], None]) -> Callable[[int], Awaitable[None]]:
    async def run(number: int) -> None:
        if name not in _SLEEPS_S:
            body(number)
            return
        # Only here: the worker of a peer without coroutines does not load it.
        import asyncio

        record(BEGIN, number)
        await asyncio.sleep(_SLEEPS_S[name])
        record(END, number)

    run.__name__ = run.__qualname__ = name
    return run


# For peers whose workers run coroutines on one event loop, where a blocking sleep is a bug.
ASYNC_BODIES = {name: _as_coroutine(name, body) for name, body in BODIES.items()}
