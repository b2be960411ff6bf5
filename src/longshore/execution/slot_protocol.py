"""The frames between a worker and the child of a slot, and how output is split among tasks.

Down, one packet of a socket is one record: a task, or the name of a file that contains a task. The
child reads a record when it is ready to begin it; until then it is in the kernel's queue, from
which the worker can take it back. Every record has the generation of the child for which it is
meant, and a later child ignores it.

Up, a pipe carries frames, each with its length before it: outcomes, reports, tasks that came too
late. Between two tasks a child of a pool writes a boundary to standard output and error, so that
every byte belongs to one task.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from longshore.execution.protocol import LINE_LIMIT_BYTES

RECORD_LIMIT_BYTES = 64 * 1024
"""A longer record is sent as the name of a file."""
FRAME_LIMIT_BYTES = LINE_LIMIT_BYTES + 64 * 1024
"""The worker reads no longer frame."""
TOKEN_BYTES = 16
_LENGTH = struct.Struct("<I")
_NUMBER = struct.Struct("<q")


class InvalidFrame(ValueError):
    """A child sent something that is no frame."""


class _Part(msgspec.Struct, array_like=True, gc=False):
    pass


class TaskRecord(_Part, tag=0):
    """A task. What is JSON is passed as text."""

    generation: int
    number: int
    fence: int
    definition: str  # its options and which are overridable, as JSON
    task_id: str
    job_id: str
    attempt: int
    input: str
    dependency_outputs: str | None = None
    checkpoints: str | None = None
    feedback: str | None = None
    previous_output: str | None = None


class FileRecord(_Part, tag=1):
    """A task whose record is in a file, which is removed by the process that takes it."""

    generation: int
    number: int
    path: str


Record = TaskRecord | FileRecord

ATTEMPT = struct.Struct("<qq")
"""The record of an attempt: generation and fence. Its spec and pipes come with it."""


class OutcomeFrame(_Part, tag=0):
    """A task ended."""

    number: int
    fence: int
    duration_ns: int
    has_folder: bool
    child_ends: bool  # something that the task started may be alive until the child has ended
    result: bytes | None  # JSON
    error: dict[str, Any] | None


class TooLateFrame(_Part, tag=1):
    """A task was not begun: the deadline had passed."""

    number: int
    fence: int


class ReportFrame(_Part, tag=2):
    """A message of a running task, as JSON; see ``execution.protocol.ChildMessage``."""

    number: int
    fence: int
    message: bytes


Frame = OutcomeFrame | TooLateFrame | ReportFrame

encode = msgspec.msgpack.Encoder().encode
decode_record: Callable[[bytes | memoryview], Record] = msgspec.msgpack.Decoder(Record).decode
_decode_frame: Callable[[memoryview], Frame] = msgspec.msgpack.Decoder(Frame).decode


def encode_frame(frame: Frame) -> bytes:
    """Returns a frame with its length before it."""
    data = encode(frame)
    return _LENGTH.pack(len(data)) + data


class FrameDecoder:
    """Decodes the frames of one child, however their bytes are split."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Returns the frames that ``data`` completes.

        Raises:
            InvalidFrame: the data is not made of frames. Frames before it are lost.
        """
        self._rest += data
        frames: list[Frame] = []
        at = 0
        with memoryview(self._rest) as view:
            while len(view) - at >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(view, at)
                if length > FRAME_LIMIT_BYTES:
                    message = f"a frame of {length} bytes exceeds {FRAME_LIMIT_BYTES} bytes"
                    raise InvalidFrame(message)
                end = at + _LENGTH.size + length
                if end > len(view):
                    break
                try:
                    frames.append(_decode_frame(view[at + _LENGTH.size : end]))
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    raise InvalidFrame(str(error)) from error
                at = end
        del self._rest[:at]
        return frames


class LineDecoder:
    """Splits the bytes of a channel into lines, however they are split in reads.

    Args:
        refuses: Whether a line, or its beginning, is too long. The rest of it is not kept.
    """

    def __init__(self, refuses: Callable[[bytearray], bool]) -> None:
        self.refuses = refuses
        self._line = bytearray()
        self._is_too_long = False

    def feed(self, data: bytes) -> list[bytearray | None]:
        """Returns the lines that ``data`` completes; None in place of one that is too long."""
        *ends, rest = data.split(b"\n")
        lines: list[bytearray | None] = []
        for end in ends:
            self._append(end)
            lines.append(None if self._is_too_long else self._line)
            self._line, self._is_too_long = bytearray(), False
        self._append(rest)
        return lines

    def _append(self, part: bytes) -> None:
        if not self._is_too_long:
            self._line += part
        if self.refuses(self._line):
            self._is_too_long = True
            self._line.clear()


def encode_boundary(token: bytes, number: int) -> bytes:
    """Returns what a child writes to an output pipe after a task, in one write."""
    return token + _NUMBER.pack(number)


class OutputSplitter:
    """Splits the bytes of one output pipe at the boundaries, however they are split in reads."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[bytes, int | None]]:
        """Returns parts of the output in sequence.

        Each part is followed by the boundary of a task, whose number is beside it; or it is the
        last part, beside None. Bytes that may be the beginning of a boundary are retained.
        """
        output, *others = (self._rest + data).split(self._token)
        parts: list[tuple[bytes, int | None]] = []
        rest = b""
        for other in others:
            if len(other) < _NUMBER.size:
                rest = self._token + other  # the last one: its number has not been read
                break
            (number,) = _NUMBER.unpack_from(other)
            parts.append((output, number))
            output = other[_NUMBER.size :]
        if not rest and (start := self._possible_start(output)) < len(output):
            output, rest = output[:start], output[start:]
        if output:
            parts.append((output, None))
        self._rest = rest
        return parts

    def _possible_start(self, output: bytes) -> int:
        """Returns where the last bytes may be the beginning of the token, or the end."""
        first = max(0, len(output) - TOKEN_BYTES + 1)
        starts = range(first, len(output))
        return next(
            (start for start in starts if self._token.startswith(output[start:])), len(output)
        )

    def flush(self) -> bytes:
        """Returns the retained bytes, when the child has ended and nothing follows."""
        rest, self._rest = self._rest, b""
        return rest
