"""The command ``logs``: the output of tasks on the terminal, in a file, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from longshore.interfaces.cli.client import ApiClient, client_command
from longshore.interfaces.cli.commands.shared import Attempt, Follow, Id
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.render import screen

if TYPE_CHECKING:
    from longshore.services import documents as d

_SIGNS = {"stdout": "|", "stderr": "!", "log": ":"}
_PALETTE = (36, 35, 34, 32, 33)
_STDERR_COLOUR = 33
_KEY_WIDTH = 24


@client_command(
    ("longshore logs job-k3x", "the output of all tasks of a job"),
    ("longshore logs job-k3x_fetch -f", "of one task, until it has ended"),
    ("longshore logs job-k3x_fetch --attempt 1", "of its first attempt only"),
)
async def logs(
    client: ApiClient, entity: Id, *, follow: Follow = False, attempt: Attempt = None
) -> None:
    """Show the output of a job or task.

    The output of a task goes to stdout and stderr as the task wrote it. The lines of a job begin
    with the task's name and | for stdout or ! for stderr, in the order in which they were printed.
    """
    ref = await client.resolve(entity)
    writer: screen.JsonItems | PrefixedOutput | RawOutput
    if client.options.json:
        writer = screen.JsonItems(lines=follow)
    elif ref.task_id is None:
        writer = PrefixedOutput(await client.task_keys(ref.job_id))
    else:
        writer = RawOutput()
    empty = True
    async for chunk in client.output(ref, follow=follow, attempt=attempt):
        writer.add(chunk)
        empty = False
    writer.end()
    if empty and not client.options.json:
        of_attempt = f" in attempt {attempt}" if attempt else ""
        print_stderr(f"no output{of_attempt}")


def lost_text(chunk: d.OutputChunk | d.OutputChunkDocument) -> str:
    """The message in place of output that could not be stored."""
    return f"longshore: {chunk.end - chunk.sequence + 1} output chunks could not be saved"


class RawOutput:
    """The output of one task: the same bytes, stdout to stdout and stderr to stderr."""

    def __init__(self) -> None:
        self._attempt = 0
        self._coloured = screen.has_colours(stderr=True)

    def add(self, chunk: d.OutputChunkDocument) -> None:
        if self._attempt and chunk.attempt != self._attempt:
            sys.stdout.flush()
            print_stderr(f"longshore: attempt {chunk.attempt}")
        self._attempt = chunk.attempt
        write_chunks([chunk], coloured=self._coloured)

    def end(self) -> None:
        """Nothing was held back."""


def write_chunks(
    chunks: Iterable[d.OutputChunk | d.OutputChunkDocument], *, coloured: bool = False
) -> None:
    """Write chunks to the streams that they were printed to."""
    for chunk in chunks:
        if chunk.stream == "lost":
            print_stderr(lost_text(chunk))
            continue
        is_error = chunk.stream == "stderr"
        file = sys.stderr if is_error else sys.stdout
        colours = b"\x1b[%dm%b\x1b[0m" % (_STDERR_COLOUR, chunk.data)
        file.buffer.write(colours if is_error and coloured else chunk.data)
        file.buffer.flush()


class PrefixedOutput:
    """The output of a job: whole lines after the key of their task."""

    def __init__(self, keys: list[str]) -> None:
        self._width = min(max((len(key) for key in keys), default=0), _KEY_WIDTH)
        self._partial_lines: dict[tuple[str, str], bytes] = {}
        self._coloured = screen.has_colours()
        self._colours: dict[str, int] = {}

    def add(self, chunk: d.OutputChunkDocument) -> None:
        if chunk.stream == "lost":
            self._print(chunk.task_id, "log", lost_text(chunk).encode())
            return
        source = (chunk.task_id, chunk.stream)
        *lines, rest = (self._partial_lines.pop(source, b"") + chunk.data).split(b"\n")
        for line in lines:
            self._print(*source, line)
        if rest:
            self._partial_lines[source] = rest
        sys.stdout.buffer.flush()

    def _print(self, key: str, stream: str, line: bytes) -> None:
        prefix = f"{key:{self._width}} {_SIGNS[stream]} "
        if self._coloured:
            colour = self._colours.setdefault(key, _PALETTE[len(self._colours) % len(_PALETTE)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        sys.stdout.buffer.write(prefix.encode() + line.rstrip(b"\r") + b"\n")

    def end(self) -> None:
        for (key, stream), rest in self._partial_lines.items():
            self._print(key, stream, rest)
        sys.stdout.buffer.flush()
