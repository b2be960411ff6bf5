"""The page of a slot: memory in a file that the worker, the reaper and the child share.

It has the moment until which the worker's lease is trusted, and what the child has begun. Reading
and writing it costs no system call. The file outlives a kill of all three processes, so that
another worker can read what had begun; it does not outlive the machine, so each page has the id of
the boot in which it was written.

All moments are on a clock that also runs while the machine sleeps.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from functools import partial
from typing import Any

PAGE_BYTES = 16 * 1024
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
clock_ns = partial(time.clock_gettime_ns, _CLOCK)
"""Returns the time since boot in nanoseconds, including the time in which the machine slept."""

_MAGIC = b"lsslot02"
_HEAD = struct.Struct("<8s16s")
_NUMBER_BYTES = 8
# Positions in the page, counted in numbers of eight bytes.
_DEADLINE, _CHILD, _RUNNING, _COUNT, _MEMORY, _PROCESSES, _ENTRIES = range(3, 10)
_ENTRY = struct.Struct("=qqq")  # task number, fence, moment
_ENTRY_NUMBERS = 3
_ENTRIES_AT = _ENTRIES * _NUMBER_BYTES
BEGUN_CAPACITY = (PAGE_BYTES - _ENTRIES_AT) // _ENTRY.size
"""How many of the last tasks that were begun a page remembers."""


def read_boot_id() -> bytes:
    """Returns 16 bytes that identify this boot of the machine; empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))
    except OSError:
        return b""


def _number(index: int) -> Any:
    """An attribute of a page that is one of its numbers."""

    def read(page: SlotPage) -> int:
        return page._numbers[index]

    def write(page: SlotPage, number: int) -> None:
        page._numbers[index] = number

    return property(read, write)


class SlotPage:
    """One page of the file.

    Attributes:
        deadline_ns: The moment after which nothing may begin or run.
        memory_bytes: What all processes of the slot's child together may use; 0: no limit.
        max_processes: How many there may be of them, with the child; 0: no limit.
        child_pid: The process id of the slot's child; 0 if there is none.
        running: Not 0 while a task is running.
        begun_count: How many tasks were begun in this page.

    Args:
        file: The file's descriptor, which may be closed afterwards; the file has this page. -1: a
            page that is in no file.
    """

    deadline_ns: int = _number(_DEADLINE)
    memory_bytes: int = _number(_MEMORY)
    max_processes: int = _number(_PROCESSES)
    child_pid: int = _number(_CHILD)
    running: int = _number(_RUNNING)
    begun_count: int = _number(_COUNT)

    def __init__(self, file: int, index: int = 0) -> None:
        self._memory = mmap.mmap(file, PAGE_BYTES, offset=index * PAGE_BYTES)
        # Each number is read and written at once, so no other process sees a part of it.
        self._numbers = memoryview(self._memory).cast("q")

    def close(self) -> None:
        """Unmap the page; the file keeps its content."""
        self._numbers.release()
        self._memory.close()

    def format(self) -> None:
        """Prepare the page for a slot. What was begun in it before stays recorded."""
        _HEAD.pack_into(self._memory, 0, _MAGIC, read_boot_id())
        for index in (_DEADLINE, _CHILD, _RUNNING, _MEMORY, _PROCESSES):
            self._numbers[index] = 0

    @property
    def last_begun(self) -> tuple[int, int] | None:
        """The number and fence of the task that was begun last."""
        if not (count := self.begun_count):
            return None
        at = _ENTRIES + (count - 1) % BEGUN_CAPACITY * _ENTRY_NUMBERS
        return self._numbers[at], self._numbers[at + 1]

    def begin(self, number: int, fence: int) -> bool:
        """Record that a task begins. Returns False if it is too late for that."""
        numbers = self._numbers
        # In this sequence: a reaper that sees no running task after the deadline can rely on it
        # that this process then reads a time after the deadline.
        numbers[_RUNNING] = 1
        now = clock_ns()
        if now >= numbers[_DEADLINE]:
            numbers[_RUNNING] = 0
            return False
        count = numbers[_COUNT]
        at = _ENTRIES + count % BEGUN_CAPACITY * _ENTRY_NUMBERS
        numbers[at] = number
        numbers[at + 1] = fence
        numbers[at + 2] = now
        numbers[_COUNT] = count + 1
        return True

    def finish(self) -> None:
        """Record that no task is running."""
        self._numbers[_RUNNING] = 0


def begun_tasks(content: bytes, boot_id: bytes) -> frozenset[tuple[int, int]] | None:
    """Returns the number and fence of the tasks that were begun, from the content of a page file.

    Each page has the last ``BEGUN_CAPACITY`` of them. Returns None if this is unknown: the machine
    was started again since, or the file is not of this kind.

    Args:
        boot_id: The return value of ``read_boot_id``.
    """
    begun: set[tuple[int, int]] = set()
    if not boot_id or len(content) % PAGE_BYTES:
        return None
    for start in range(0, len(content), PAGE_BYTES):
        if content[start : start + _HEAD.size] != _HEAD.pack(_MAGIC, boot_id):
            return None
        entries = content[start + _ENTRIES_AT :][: BEGUN_CAPACITY * _ENTRY.size]
        begun.update((number, fence) for number, fence, _ in _ENTRY.iter_unpack(entries) if number)
    return frozenset(begun)


def open_page_file(path: str, pages: int) -> int:
    """Open the file, with at least that many pages. Returns its descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < pages * PAGE_BYTES:
            # With its blocks: a write to memory must not fail because the disk is full.
            os.posix_fallocate(file, 0, pages * PAGE_BYTES)
    except BaseException:
        os.close(file)
        raise
    return file
