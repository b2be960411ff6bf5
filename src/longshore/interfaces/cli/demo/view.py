"""How the demo is shown: a picture that changes on a terminal, plain lines everywhere else."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from longshore.core.tasks.states import TaskState
from longshore.interfaces.cli.demo.frame import DemoFrame, DemoNote, TaskLine
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import console, state_text

_BAR = 30
_SIGNS = {
    TaskState.WAITING: ("·", "."),
    TaskState.PENDING: ("○", "o"),
    TaskState.PROCESSING: ("▶", ">"),
    TaskState.COMPLETED: ("✔", "+"),
    TaskState.FAILED: ("✖", "x"),
}


class DemoView(Protocol):
    """Shows scenes while it is entered."""

    def __enter__(self) -> DemoView: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def show(self, frame: DemoFrame) -> None:
        """Show the stage as it is now."""
        ...


def view_for(title: str) -> DemoView:
    """The one that fits where the output goes."""
    screen = console()
    return LiveView(screen, title) if screen.is_terminal else LineView()


class LiveView:
    """The whole stage, drawn again in place."""

    def __init__(self, screen: Console, title: str) -> None:
        self._screen = screen
        self._title = title
        # Signs that the terminal's encoding lacks would end the demo.
        self._plain = 0 if screen.encoding.lower().startswith("utf") else 1
        self._live = Live(console=screen, auto_refresh=False)

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def show(self, frame: DemoFrame) -> None:
        parts: list[RenderableType] = [self._head(frame), Text(), self._tasks(frame), Text()]
        parts.append(self._workers(frame))
        parts += [Text(note.text, style=_note_style(note)) for note in frame.notes]
        self._live.update(Group(*parts), refresh=True)

    def _head(self, frame: DemoFrame) -> Text:
        full = _BAR * frame.completed // max(len(frame.lines), 1)
        sign = ("━", "=")[self._plain]
        return Text.assemble(
            (self._title, "bold"),
            "  ",
            (sign * full, "green"),
            (sign * (_BAR - full), "dim"),
            f"  {frame.completed}/{len(frame.lines)}  {formats.duration_text(frame.elapsed)}",
        )

    def _tasks(self, frame: DemoFrame) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0))
        for width in (20, 12, 8, 9):
            table.add_column(width=width, no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for line in frame.lines:
            again = f" (attempt {line.attempt})" if line.attempt > 1 else ""
            table.add_row(
                self._key_text(line),
                state_text(line.state),
                Text(formats.duration_text(line.duration), justify="right"),
                Text(line.worker),
                Text(line.last_line + again, style="dim"),
            )
        return table

    def _key_text(self, line: TaskLine) -> Text:
        branch = ("└─ ", "`- ")[self._plain]
        indent = "   " * (line.depth - 1) + branch if line.depth else ""
        sign = _SIGNS.get(line.state, ("?", "?"))[self._plain]
        return Text.assemble((indent, "dim"), f"{sign} {line.key}")

    def _workers(self, frame: DemoFrame) -> Text:
        shown = Text()
        for name, process_id, alive in frame.workers:
            style = "" if alive else "red"
            shown.append(f"{name}: process {process_id} {'at work' if alive else 'dead'}   ", style)
        return shown


class LineView:
    """A line for each change, and never a control character."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[TaskState, int]] = {}
        self._notes = 0

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Each line is out already."""

    def show(self, frame: DemoFrame) -> None:
        at = f"{frame.elapsed.total_seconds():5.1f} s"
        for line in frame.lines:
            now = (line.state, line.attempt)
            if line.state is not TaskState.WAITING and self._seen.get(line.key) != now:
                self._seen[line.key] = now
                print(f"{at}  {line.key:9}  {_line_text(line)}".rstrip(), flush=True)
        for note in frame.notes[self._notes :]:
            print(f"{at}  {note.text}", flush=True)
        self._notes = len(frame.notes)


def _line_text(line: TaskLine) -> str:
    if line.state is TaskState.COMPLETED:
        duration = formats.duration_text(line.duration)
        return f"completed by {line.worker} in {duration}: {line.last_line}"
    if line.state is TaskState.PROCESSING:
        return f"runs on {line.worker}, attempt {line.attempt}"
    return line.state.value


def _note_style(note: DemoNote) -> str:
    return "bold green" if note.good else "bold red"
