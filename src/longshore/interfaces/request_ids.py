"""Request ids that a client draws before its first try, so that a repeated request is the same."""

from __future__ import annotations

import secrets
import time

from longshore.core.ids import new_request_id

_RANDOM_BITS = 72
_NS_PER_MS = 1_000_000


def draw_request_id() -> str:
    """A new request id, which contains the time: ids of jobs that follow each other sort so."""
    return new_request_id(time.time_ns() // _NS_PER_MS, secrets.randbits(_RANDOM_BITS))
