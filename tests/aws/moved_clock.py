"""Starts the AWS stand-in with queues whose time a test sets.

Run by the stand-in's own Python: ``python moved_clock.py FILE``. The file holds one double: the
time of day in seconds, or 0 for the real one. So a message that is hidden for a minute is seen
again when the test's clock has moved on by one, and not when a minute has passed.
"""

import mmap
import struct
import sys
import time
from typing import Any

from ministack import app
from ministack.services import eventbridge, sqs


class _Time:
    """The module ``time`` as the queues see it."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def time(self) -> float:
        seconds: float = struct.unpack("d", self._shared[:8])[0]
        return seconds or time.time()

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


if __name__ == "__main__":
    # The bus too: it puts messages on queues, with the time at which they were sent.
    sqs.time = eventbridge.time = _Time(sys.argv.pop(1))
    app.main()
