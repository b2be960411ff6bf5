"""A child that was started cold: everything is in place, the order is in the file it is told of.

The order comes in a file that only its owner can read, never on the command line.
"""

from __future__ import annotations

import json
import sys

from longshore.core.child_places import CHANNEL_NUMBER, REPLIES_NUMBER
from longshore.runners.channel import Channel
from longshore.runners.work import carry_out


def main() -> int:
    """Carry out the order in the file named by the first argument."""
    with open(sys.argv[1], encoding="utf-8") as file:
        order = json.load(file)
    return carry_out(order, Channel(CHANNEL_NUMBER, REPLIES_NUMBER))


if __name__ == "__main__":
    # What is still in Python's buffers must reach the pipe before the process ends.
    code = main()
    sys.stdout.flush()
    sys.exit(code)
