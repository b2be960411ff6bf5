"""What a guard tells its keeper, on one pipe for all guards: records that are written whole."""

from __future__ import annotations

import contextlib
import os
import struct
from dataclasses import dataclass

from longshore.core.keeper_words import Cause

_FORM = struct.Struct("<q?iiq8s")  # far below what a pipe takes in one piece
_AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The leader of an attempt began, or ended."""

    number: int
    over: bool
    leader: int
    status: int = 0
    peak_bytes: int = 0
    cause: Cause = Cause.NONE


def tell(pipe: int, told: Told) -> None:
    """Write one; if the keeper is gone, nobody asks any more."""
    record = _FORM.pack(
        told.number, told.over, told.leader, told.status, told.peak_bytes, told.cause.encode()
    )
    with contextlib.suppress(BrokenPipeError):
        os.write(pipe, record)


def read(pipe: int) -> list[Told]:
    """What has been told; the pipe must not block."""
    try:
        data = os.read(pipe, _FORM.size * _AT_ONCE)
    except BlockingIOError:
        return []
    return [
        Told(
            number=number,
            over=over,
            leader=leader,
            status=status,
            peak_bytes=peak,
            cause=Cause(cause.rstrip(b"\0").decode()),
        )
        for number, over, leader, status, peak, cause in _FORM.iter_unpack(data)
    ]
