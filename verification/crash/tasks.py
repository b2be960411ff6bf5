"""The task functions of the workload. Each notes its progress in a file of its own.

A note is one short append, so it is stored even if the process is killed immediately afterwards.
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

from longshore.execution.process_table import is_alive, start_time_of
from longshore.execution.runners.context import current

QUICK = 7
LARGE_BYTES = 200_000
"""More than the largest blob that is stored inside the database."""
STEPS = {"one": 1, "two": 2}
ARTIFACT = "report.txt"
GO, REPAIRED = "go", "repaired"
"""Files beside the notes: the slow task may end; the broken task is repaired."""

_TICK_S = 0.005
_LONGEST_S = 120


def append_note(path: Path, text: str) -> None:
    """Add a line to a file of notes."""
    opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(opened, f"{text}\n".encode())
    finally:
        os.close(opened)


def read_notes(path: Path) -> list[str]:
    """The lines of a file of notes."""
    with contextlib.suppress(FileNotFoundError):
        return path.read_text().splitlines()
    return []


@contextlib.contextmanager
def _noted_attempt(path: Path) -> Iterator[None]:
    """Note the start and the end, and any earlier attempt that still runs."""
    for line in read_notes(path):
        if line.startswith("begin "):
            _, attempt, process_id, started = line.split()
            if is_alive(int(process_id)) and start_time_of(int(process_id)) == started:
                append_note(path, f"overlap {attempt}")
    append_note(path, f"begin {current().attempt} {os.getpid()} {start_time_of(os.getpid())}")
    yield
    append_note(path, f"end {current().attempt}")


def quick(notes: str) -> int:
    """Completes at once."""
    with _noted_attempt(Path(notes)):
        _print_output("quick")
        return QUICK


def add(notes: str) -> int:
    """Returns the sum of its parents' results."""
    with _noted_attempt(Path(notes)):
        return sum(int(value) for value in current().dependency_outputs.values())


def stumble(notes: str) -> str:
    """Fails once with an error that is retried."""
    path = Path(notes)
    with _noted_attempt(path):
        if "stumbled" not in read_notes(path):
            append_note(path, "stumbled")
            message = "the first time never works"
            raise ConnectionError(message)
        return "up again"


def broken(notes: str) -> str:
    """Fails until it is repaired."""
    path = Path(notes)
    with _noted_attempt(path):
        if not (path.parent / REPAIRED).exists():
            message = "not repaired yet"
            raise RuntimeError(message)
        return "repaired"


def deaf(notes: str) -> None:
    """Ignores SIGTERM and waits until it is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with _noted_attempt(Path(notes)):
        threading.Event().wait(_LONGEST_S)


def large(notes: str, text: str) -> str:
    """Turns a large input into a large result."""
    with _noted_attempt(Path(notes)):
        return text.swapcase()


def measure(notes: str) -> int:
    """Returns the length of its parent's result."""
    with _noted_attempt(Path(notes)):
        (text,) = current().dependency_outputs.values()
        return len(text)


def stepwise(notes: str) -> dict[str, Any]:
    """Runs checkpointed steps, prints, and writes an artifact."""
    path, context = Path(notes), current()
    with _noted_attempt(path):
        done = {}
        for name, value in STEPS.items():
            done[name] = context.step(name, partial(_noted_step, path, name, value))
            append_note(path, f"saved {name}")
            _print_output(f"step {name}")
        folder = Path(context.folder) / "artifacts"
        folder.mkdir(exist_ok=True)
        (folder / ARTIFACT).write_text("r" * LARGE_BYTES)
        context.summary("two steps")
        return done


def _noted_step(path: Path, name: str, value: int) -> int:
    append_note(path, f"ran {name}")
    return value


def slow(notes: str) -> str:
    """Waits until it may end."""
    path, pause = Path(notes), threading.Event()
    with _noted_attempt(path):
        _print_output("waiting")
        while not (path.parent / GO).exists():
            pause.wait(_TICK_S)
        return "at last"


def _print_output(text: str) -> None:
    # What a task prints is its output.
    print(text, flush=True)
