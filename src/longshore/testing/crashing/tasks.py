"""What the tasks of the workload do. Each notes in a file of its own how far it came.

A note is one short append, so it is there although the process is killed in the next moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from longshore.adapters.process.table import alive, start_time_of
from longshore.runners.context import current

QUICK = 7
LARGE_BYTES = 200_000
"""Above what a blob may have to be kept inside the database."""
STEPS = {"one": 1, "two": 2}
ARTIFACT = "report.txt"
GO, MENDED = "go", "mended"
"""Files beside the notes: the slow task may end; the broken one has been mended."""

_TICK_S = 0.005
_LONGEST_S = 120


def note(place: Path, text: str) -> None:
    """Add a line to a file of notes."""
    opened = os.open(place, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(opened, f"{text}\n".encode())
    finally:
        os.close(opened)


def noted(place: Path) -> list[str]:
    """The lines of a file of notes."""
    with contextlib.suppress(FileNotFoundError):
        return place.read_text().splitlines()
    return []


@contextlib.contextmanager
def _attempt(place: Path) -> Iterator[None]:
    """Note the beginning and the end, and any earlier attempt that still runs."""
    for line in noted(place):
        if line.startswith("begin "):
            _, attempt, process_id, started = line.split()
            if alive(int(process_id)) and start_time_of(int(process_id)) == started:
                note(place, f"overlap {attempt}")
    note(place, f"begin {current().attempt} {os.getpid()} {start_time_of(os.getpid())}")
    yield
    note(place, f"end {current().attempt}")


def quick(notes: str) -> int:
    """Completes at once."""
    with _attempt(Path(notes)):
        _say("quick")
        return QUICK


def add(notes: str) -> int:
    """The sum of what its parents gave."""
    with _attempt(Path(notes)):
        return sum(int(value) for value in current().dependency_outputs.values())


def stumble(notes: str) -> str:
    """Fails once, in a way that is worth another try."""
    place = Path(notes)
    with _attempt(place):
        if "stumbled" not in noted(place):
            note(place, "stumbled")
            message = "the first time never works"
            raise ConnectionError(message)
        return "up again"


def broken(notes: str) -> str:
    """Fails until somebody has mended it."""
    place = Path(notes)
    with _attempt(place):
        if not (place.parent / MENDED).exists():
            message = "not mended yet"
            raise RuntimeError(message)
        return "mended"


def deaf(notes: str) -> None:
    """Waits to be killed: a polite signal does nothing."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with _attempt(Path(notes)):
        threading.Event().wait(_LONGEST_S)


def large(notes: str, given: str) -> str:
    """Turns a large input into a large result."""
    with _attempt(Path(notes)):
        return given.swapcase()


def measure(notes: str) -> int:
    """How long the result of its parent is."""
    with _attempt(Path(notes)):
        (text,) = current().dependency_outputs.values()
        return len(text)


def stepwise(notes: str) -> dict[str, Any]:
    """Works in steps that are kept, prints, and leaves files."""
    place, context = Path(notes), current()
    with _attempt(place):
        done = {}
        for name, value in STEPS.items():
            done[name] = context.step(name, partial(_ran, place, name, value))
            note(place, f"kept {name}")
            _say(f"step {name}")
        folder = Path(context.folder) / "artifacts"
        folder.mkdir(exist_ok=True)
        (folder / ARTIFACT).write_text("r" * LARGE_BYTES)
        context.summary("two steps")
        return done


def _ran(place: Path, name: str, value: int) -> int:
    note(place, f"ran {name}")
    return value


def slow(notes: str) -> str:
    """Waits until it may end."""
    place, pause = Path(notes), threading.Event()
    with _attempt(place):
        _say("waiting")
        while not (place.parent / GO).exists():
            pause.wait(_TICK_S)
        return "at last"


def _say(text: str) -> None:
    # What a task prints is its output.
    print(text, flush=True)  # noqa: T201
