"""Printing for people: tables without frames, and colours on a terminal.

Text from tasks and users is never read as markup, and a terminal gets it without control sequences.
In a pipe, it is printed as it is; lines are as long as they need to be and nothing is cut, so that
other programs can search them. ``rich`` is imported when something is printed: the help of a
command does not need it.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces.cli.exit_codes import print_stderr

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Row = Mapping[str, "RenderableType"]

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
# How columns look, by their headings.
_RIGHT = frozenset(
    (
        *("#", "ADDED", "AT", "ATTEMPT", "ATTEMPTS", "CACHE", "COST", "DURATION", "EXIT", "IN"),
        *("IN PROGRESS", "INVARIANT", "LIMIT", "OUT", "PENDING", "RESERVED", "ROUND"),
        *("RUNNING FOR", "SILENT FOR", "SPENT", "TASKS", "VERSION"),
    )
)
_WRAPPED = frozenset(
    (
        "DESCRIPTION",
        "ERROR",
        "FINDING",
        "NAME",
        "QUEUE",
        "RESULT",
        "SERVER",
        "TO DO",
        "VALUE",
        "WHAT",
    )
)
_OMITTED_IF_EMPTY = frozenset(
    ("ADDED", "CACHE", "COST", "DEFINITION", "DURATION", "EXPIRES", "IN", "OUT", "ROUND")
)
# Everything that controls a terminal except colours, tabs and the ends of lines: strings such as
# titles (OSC, DCS), the cursor and modes (CSI), other escapes, and single characters (C0, C1).
_CONTROL = re.compile(
    r"(?P<colour>\x1b\[[0-9;:]*m)"
    r"|[\x90\x98\x9d-\x9f][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[PX\]^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[ -/]*[0-Z\\^-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_LINE_END = re.compile(r"\r+\n?")
# The start of a colour, or of the end of a line, whose rest may follow.
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-9;:]{0,32})?|\r)?\Z")


class _TerminalWriter(io.BufferedWriter):
    """Writes to a terminal, without the control sequences in what is written."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(io.FileIO(terminal.fileno(), "w", closefd=False))
        self._encoding = terminal.encoding
        self._decoder = codecs.getincrementaldecoder(self._encoding)("replace")
        self._unfinished = ""

    def write(self, data: Any) -> int:
        text = self._unfinished + self._decoder.decode(bytes(data))
        end = len(text) - len(_UNFINISHED.findall(text)[0])
        text, self._unfinished = text[:end], text[end:]
        clean = _CONTROL.sub(r"\g<colour>", _LINE_END.sub("\n", text))
        super().write(clean.encode(self._encoding, "replace"))
        return len(data)


def filter_terminals() -> None:
    """Remove control sequences from all that this process prints to a terminal."""
    sys.stdout, sys.stderr = _filtered(sys.stdout), _filtered(sys.stderr)


def _filtered(stream: TextIO) -> TextIO:
    # A stream is None if its file was closed when the process started.
    if stream is None or not stream.isatty() or isinstance(stream.buffer, _TerminalWriter):
        return stream
    return io.TextIOWrapper(
        _TerminalWriter(stream),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=True,
    )


def console(*, stderr: bool = False, moves_cursor: bool = False) -> Console:
    """A console that knows whether it is a terminal; rich itself honours NO_COLOR.

    Args:
        moves_cursor: For a picture that is drawn again and again; its text is Longshore's own.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    if moves_cursor and stream.isatty():
        stream = (sys.__stderr__ if stderr else sys.__stdout__) or stream
    width = None if stream.isatty() else _UNLIMITED_WIDTH
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=width)


def styled(text: str, style: str) -> Text:
    """Text in a style of rich, such as ``bold red``."""
    from rich.text import Text

    return Text(text, style=style)


def state_text(state: str) -> Text:
    """A state in its colour; a state that only a newer server has gets none."""
    return styled(str(state).replace("_", " "), _STYLES.get(str(state), ""))


def print_title(title: str, *details: Text) -> None:
    """Print the heading of an entity: its name in bold, then details such as its state."""
    from rich.text import Text

    line = Text("  ").join([styled(title, "bold"), *details])
    console().print(line, soft_wrap=True)


def print_table(rows: Sequence[Row], errors: Sequence[str] = ()) -> None:
    """Print rows below their headings.

    Args:
        errors: For each row an error message: a last column, or lines below the table if the
            terminal is too narrow for it.
    """
    from rich.measure import Measurement

    screen = console()
    table = _table(rows)
    if not any(errors):
        print_lines(table)
        return
    width = Measurement.get(screen, screen.options.update(width=_UNLIMITED_WIDTH), table).maximum
    if width + _ERROR_WIDTH <= screen.width:
        wider = zip(rows, errors, strict=True)
        print_lines(_table([{**row, "ERROR": error} for row, error in wider]))
    else:
        print_lines(table)
        print()
        names = (str(next(iter(row.values()))) for row in rows)
        print_named(dict(zip(names, errors, strict=True)))


def _table(rows: Sequence[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    headings = [
        heading
        for heading in rows[0]
        if heading not in _OMITTED_IF_EMPTY or any(str(row[heading]) for row in rows)
    ]
    for heading in headings:
        table.add_column(
            heading,
            no_wrap=heading not in _WRAPPED,
            overflow="fold",
            justify="right" if heading in _RIGHT else "left",
        )
    for row in rows:
        cells = (row[heading] for heading in headings)
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
    return table


def print_pairs(**pairs: str | Text) -> None:
    """Print names and values below each other, without empty values; ``_`` is a space."""
    print_named({name.replace("_", " "): value for name, value in pairs.items()})


def print_named(values: Mapping[str, str | Text]) -> None:
    """Print values below each other after their names, without empty ones."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in values.items():
        if str(value):
            table.add_row(name, Text(value) if isinstance(value, str) else value)
    print_lines(table)


def print_lines(renderable: RenderableType) -> None:
    """Print something without the spaces that rich adds to the ends of lines."""
    screen = console()
    with screen.capture() as capture:
        screen.print(renderable)
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_json(value: Any) -> None:
    """Print a document, or values, as JSON."""
    from longshore.services.documents import to_dict

    print(json.dumps(value, indent=2, ensure_ascii=False, default=to_dict))


class JsonItems:
    """Prints items one by one: as one JSON array, or as JSON lines for a reader that follows."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self._first = True

    def add(self, item: Any) -> None:
        """Print one item."""
        from longshore.services.documents import to_dict

        text = json.dumps(item, ensure_ascii=False, default=to_dict)
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


def ask(question: str, *, effect: str) -> str:
    """Ask a question on the terminal, and return the answer.

    Args:
        effect: What the command would do, for the error.

    Raises:
        UsageError: there is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{effect}; there is no terminal to ask on, so add --yes")
    # The handler of asyncio would let Ctrl-C wait for the answer.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        print(question, end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, previous)
    if not answer.endswith("\n"):
        print_stderr("")
    return answer.strip()


def has_colours(*, stderr: bool = False) -> bool:
    """Whether colours may be used: on a terminal that has them, unless NO_COLOR is set."""
    screen = console(stderr=stderr)
    return screen.is_terminal and screen.color_system is not None and not screen.no_color
