"""Keeping the memory of this process to itself.

What a process knows, others of the same user can read: ``/proc/PID/environ``, ``/proc/PID/mem``, a
debugger. The child that holds a credential is the parent of the agent's tools, so it asks the
kernel not to let them. This does not stop root, nor whoever may trace any process; agents that
work as root can read it, and should be given a user of their own. What programs it starts has its
own memory, and is as readable as ever. Who looks after this process reads only its state, parent
and size, which stay visible, and signals reach it as before.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


def hide_memory() -> bool:
    """Let no other process of this user look into this one, from now on; whether that is so.

    Also leaves no core file behind. False where the kernel cannot: not on Linux.
    """
    if sys.platform != "linux":
        return False
    prctl = ctypes.CDLL(None).prctl
    refused = prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) or prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    return not refused
