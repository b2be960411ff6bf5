"""What a process does for the first time costs more, so the template does it before any fork.

The interpreter notes in its memory what it meets (which method a name means, which kind of object
an instruction gets). Noted before, a child finds it; noted in the child, each note copies a page.
"""

from __future__ import annotations

import json
import os
from contextvars import copy_context

from longshore.runners.channel import Channel
from longshore.runners.work import carry_out

OFTEN = 10
"""More than the interpreter waits for before it adapts a function to what it meets."""

_ORDER = {
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


def rehearse(times: int) -> None:
    """Carry out an order that does nothing, for nobody."""
    nobody = os.open(os.devnull, os.O_RDWR)
    channel = Channel(nobody, nobody)
    for _ in range(times):
        copy_context().run(carry_out, json.loads(json.dumps(_ORDER)), channel)
    os.close(nobody)
