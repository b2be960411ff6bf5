"""Protects the memory of this process from other processes of the same user.

Processes of one user can read each other's memory: through ``/proc/PID/environ``, ``/proc/PID/mem``
or a debugger. The child that holds a credential is the parent of the agent's tools, so it asks the
kernel to deny them this. Root and processes that may trace any other are not stopped; agents should
not run as root. The programs that this process starts are not protected. The state, parent and size
of this process, which its reaper reads, stay visible, and signals reach it as before.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_PR_GET_DUMPABLE: Final = 3
_PR_SET_DUMPABLE: Final = 4


def hide_memory() -> bool:
    """Deny other processes of this user access to this one's memory, and disable core files.

    Returns:
        Whether the memory is protected; False on other systems than Linux.
    """
    if sys.platform != "linux":
        return False
    prctl = ctypes.CDLL(None).prctl
    refused = prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) or prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)
    return not refused
