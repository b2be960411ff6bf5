"""A runner without children: every attempt has ended before it began.

What is left is what Longshore itself costs a task: receive, claim, lease, outcome, dispatch.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from unittest.mock import patch

from longshore.ports.runner import AttemptEnding, AttemptSpec, ChildReport
from longshore.services.worker.worker import Worker
from longshore.wiring.services import Services, new_worker_id

# Above the highest number that Linux gives out, so that no such process can exist.
_NUMBERS = itertools.count(2**22 + 1)


class EndedAttempt:
    """See ``ports.runner.RunningAttempt``."""

    def __init__(self) -> None:
        self.process_id = next(_NUMBERS)
        self.folder = None

    async def reports(self) -> AsyncIterator[ChildReport]:
        nothing: tuple[ChildReport, ...] = ()
        for report in nothing:
            yield report

    async def confirm_step(self, name: str) -> None:
        return

    async def ending(self) -> AttemptEnding:
        return AttemptEnding()

    async def stop(self, *, grace: timedelta) -> str:
        return "SIGTERM"

    def trust_until(self, deadline_ns: int) -> None:
        return

    def rss_bytes(self) -> int:
        return 0

    async def close(self) -> None:
        return


class InstantRunner:
    """See ``ports.runner.Runner``."""

    async def open(self) -> None:
        return

    async def close(self) -> None:
        return

    async def start(self, spec: AttemptSpec, *, deadline_ns: int) -> EndedAttempt:
        return EndedAttempt()


def _worker(services: Services, *, queues: Sequence[str] | None = None) -> Worker:
    return services.worker_with_runner(
        InstantRunner(),
        new_worker_id(),
        process_id=os.getpid(),
        roll=random.random,
        queues=queues,
    )


@contextlib.contextmanager
def without_children() -> Iterator[None]:
    """Workers that are built meanwhile get the stub; all else of the wiring stays as it is."""
    with patch.object(Services, "worker", _worker):
        yield
