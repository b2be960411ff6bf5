"""Entry point of a child with ``isolation: spawn``: executes the spec in an open file.

The spec comes in memory that no other process has, never on the command line.
"""

from __future__ import annotations

import json
import sys

from longshore.execution.linux import hide_memory
from longshore.execution.protocol import CHANNEL_FD, REPLIES_FD
from longshore.execution.runners.channel import Channel
from longshore.execution.runners.executor import execute_attempt


def main() -> int:
    """Execute the spec in the file whose number is the first argument. Returns the exit code."""
    hide_memory()
    with open(int(sys.argv[1]), encoding="utf-8") as file:
        file.seek(0)
        spec = json.load(file)
    return execute_attempt(spec, Channel(CHANNEL_FD, REPLIES_FD))


if __name__ == "__main__":
    # Python's buffers must reach the pipe before the process ends.
    code = main()
    sys.stdout.flush()
    sys.exit(code)
