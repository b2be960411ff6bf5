"""The body of ``longshore logs``: what tasks printed, on the way back to a terminal or a file."""

from __future__ import annotations

import sys
from typing import Protocol

from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render.screen import JsonItems, has_colours
from longshore.services.documents import OutputChunk, Stream
from longshore.services.output_follow import TaskOutputChunk

_SIGNS = {Stream.STDOUT: "|", Stream.STDERR: "!", Stream.LOG: ":"}
_PALETTE = (36, 35, 34, 32, 33)
_STDERR_COLOUR = 33
_LONGEST_KEY = 24


class OutputWriter(Protocol):
    """Takes pieces of output and brings them to the reader."""

    def write(self, chunk: TaskOutputChunk) -> None:
        """Take one piece."""
        ...

    def end(self) -> None:
        """Bring out what was held back."""
        ...


async def logs(options: GlobalOptions, text: str, *, follow: bool, attempt: int | None) -> None:
    """Print what a job or task printed."""
    async with open_client(options) as desk:
        named = await desk.resolve(text)
        if options.json:
            writer: OutputWriter = JsonOutput(named.job_id, lines=follow)
        elif named.task_id is None:
            writer = PrefixedOutput(await desk.task_keys(named.job_id))
        else:
            writer = RawOutput()
        printed = False
        async for piece in desk.output(named, follow=follow, attempt=attempt):
            writer.write(piece)
            printed = True
        writer.end()
        if not printed and not options.json:
            of_attempt = f" in attempt {attempt}" if attempt else ""
            print_stderr(f"nothing was printed{of_attempt}" + ("" if follow else " so far"))


def lost_text(entry: OutputChunk) -> str:
    """What is said where output could not be kept."""
    return f"longshore: {entry.end - entry.sequence + 1} pieces of output were not kept here"


class RawOutput:
    """One task: bytes as they were, stdout to stdout and stderr to stderr."""

    def __init__(self) -> None:
        self._attempt = 0
        self._coloured = has_colours(stderr=True)

    def write(self, chunk: TaskOutputChunk) -> None:
        entry = chunk.chunk
        if self._attempt and entry.attempt != self._attempt:
            sys.stdout.flush()
            print_stderr(f"longshore: attempt {entry.attempt}")
        self._attempt = entry.attempt
        if entry.stream is Stream.LOST:
            print_stderr(lost_text(entry))
            return
        data = entry.data
        if entry.stream is Stream.STDERR and self._coloured:
            data = b"\x1b[%dm%b\x1b[0m" % (_STDERR_COLOUR, data)
        write_raw(entry.stream, data)

    def end(self) -> None:
        """Nothing was held back."""


def write_raw(stream: Stream, data: bytes) -> None:
    """Bytes to the stream that they came from."""
    file = sys.stderr if stream is Stream.STDERR else sys.stdout
    file.buffer.write(data)
    file.buffer.flush()


class PrefixedOutput:
    """A job: whole lines with the task's key before them."""

    def __init__(self, keys: list[str]) -> None:
        self._width = min(max((len(key) for key in keys), default=0), _LONGEST_KEY)
        self._partial_lines: dict[tuple[str, Stream], bytes] = {}
        self._coloured = has_colours()
        self._colours: dict[str, int] = {}

    def write(self, chunk: TaskOutputChunk) -> None:
        entry = chunk.chunk
        if entry.stream is Stream.LOST:
            self._print(chunk.key, Stream.LOG, lost_text(entry).encode())
            return
        place = (chunk.key, entry.stream)
        *lines, rest = (self._partial_lines.pop(place, b"") + entry.data).split(b"\n")
        for line in lines:
            self._print(chunk.key, entry.stream, line)
        if rest:
            self._partial_lines[place] = rest
        sys.stdout.buffer.flush()

    def _print(self, key: str, stream: Stream, line: bytes) -> None:
        prefix = f"{key:{self._width}} {_SIGNS[stream]} "
        if self._coloured:
            colour = self._colours.setdefault(key, _PALETTE[len(self._colours) % len(_PALETTE)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        sys.stdout.buffer.write(prefix.encode() + line.rstrip(b"\r") + b"\n")

    def end(self) -> None:
        for (key, stream), rest in self._partial_lines.items():
            self._print(key, stream, rest)
        sys.stdout.buffer.flush()


class JsonOutput:
    """For a program: each piece with its place, its time and its text."""

    def __init__(self, job_id: str, *, lines: bool) -> None:
        self._job_id = job_id
        self._items = JsonItems(lines=lines)

    def write(self, chunk: TaskOutputChunk) -> None:
        entry = chunk.chunk
        document: dict[str, object] = {
            "jobId": self._job_id,
            "taskId": chunk.key,
            "attempt": entry.attempt,
            "sequence": entry.sequence,
            "at": entry.at.isoformat().replace("+00:00", "Z"),
            "stream": entry.stream.value,
            "text": entry.data.decode(errors="replace"),
        }
        if entry.last is not None:
            document["lastSequence"] = entry.last
        self._items.add(document)

    def end(self) -> None:
        self._items.end()
