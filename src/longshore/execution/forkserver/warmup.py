"""Warms up the interpreter before any fork, so that children start faster.

The interpreter caches in memory what it meets (the method a name resolves to, the type an
instruction gets). Children share caches filled before the fork; a cache filled in the child copies
a memory page.
"""

from __future__ import annotations

import json
import os
from contextvars import copy_context

from longshore.execution.runners.channel import Channel
from longshore.execution.runners.executor import execute_attempt

WARMUP_RUNS = 10
"""More runs than the interpreter needs before it specialises a function."""

_SPEC = {
    "runner": "python",
    "options": {},
    "folder": os.curdir,
    "task_id": "",
    "job_id": "",
    "attempt": 0,
    "input": {"function": "os:getpid", "path": []},
    "dependency_outputs": {},
    "checkpoints": {},
    "feedback": None,
    "previous_output": None,
}


def warm_up(times: int) -> None:
    """Execute a spec that does nothing, ``times`` times, with its reports discarded."""
    null_fd = os.open(os.devnull, os.O_RDWR)
    channel = Channel(null_fd, null_fd)
    for _ in range(times):
        copy_context().run(execute_attempt, json.loads(json.dumps(_SPEC)), channel)
    os.close(null_fd)
