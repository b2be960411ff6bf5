"""Printing for people: tables without frames, and colour where there is a terminal to show it.

What tasks and users wrote is always shown as text, never read as markup. In a pipe, lines are as
long as they need to be and nothing is cut, so that other programs can search them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from longshore.core.tasks.states import JobState, TaskState

_UNLIMITED_WIDTH = 10_000
_ERROR_WIDTH = 30
_STYLES = {
    TaskState.WAITING.value: "dim",
    TaskState.PENDING.value: "yellow",
    TaskState.PROCESSING.value: "cyan",
    TaskState.IN_REVIEW.value: "magenta",
    TaskState.PARKED.value: "magenta",
    TaskState.COMPLETED.value: "green",
    TaskState.FAILED.value: "bold red",
    TaskState.CANCELLED.value: "magenta",
    JobState.RUNNING.value: "cyan",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; a flexible one gives way first when the terminal is narrow."""

    title: str
    flexible: bool = False
    right: bool = False


def console(*, stderr: bool = False) -> Console:
    """A console that knows whether it is a terminal; rich itself honours NO_COLOR."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _UNLIMITED_WIDTH
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def state_text(state: str) -> Text:
    """A state in its colour; one that a newer server knows has none."""
    return Text(str(state).replace("_", " "), style=_STYLES.get(str(state), ""))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print rows below their titles."""
    print_lines(_table(columns, rows))


def print_table_with_errors(
    columns: Sequence[Column], rows: Sequence[Sequence[str | Text]], errors: Sequence[str]
) -> None:
    """Likewise, with what went wrong in a last column; below, where the terminal is too narrow."""
    screen = console()
    plain = _table(columns, rows)
    width = Measurement.get(screen, screen.options.update(width=_UNLIMITED_WIDTH), plain).maximum
    if not any(errors):
        print_lines(plain)
    elif width + _ERROR_WIDTH <= screen.width:
        wider = [[*row, error] for row, error in zip(rows, errors, strict=True)]
        print_lines(_table([*columns, Column("ERROR", flexible=True)], wider))
    else:
        print_lines(plain)
        print()
        print_pairs([(str(row[0]), error) for row, error in zip(rows, errors, strict=True)])


def _table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            no_wrap=not column.flexible,
            overflow="fold",
            justify="right" if column.right else "left",
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def print_pairs(pairs: Sequence[tuple[str, str | Text]]) -> None:
    """Print names and values below each other; what is empty is left out."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        if str(value):
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    print_lines(table)


def print_lines(table: RenderableType) -> None:
    """Print something without the spaces that fill up its lines."""
    screen = console()
    with screen.capture() as capture:
        screen.print(table)
    # A table pads its last column; nobody wants the spaces when copying a line.
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_json(value: Any) -> None:
    """Print a document for a program."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


class JsonItems:
    """Prints many objects one by one: as one array, or one a line for a reader that follows."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._first = True

    def add(self, item: Any) -> None:
        """Print one object."""
        text = json.dumps(item, ensure_ascii=False)
        if self._lines:
            print(text, flush=True)
            return
        print("[" if self._first else ",")
        print(f"  {text}", end="")
        self._first = False

    def end(self) -> None:
        """Close the array."""
        if not self._lines:
            print("[]" if self._first else "\n]")


def has_colours(*, stderr: bool = False) -> bool:
    """Whether colours may be used there: a terminal that has some, and nobody who said no."""
    screen = console(stderr=stderr)
    return screen.is_terminal and screen.color_system is not None and not screen.no_color
