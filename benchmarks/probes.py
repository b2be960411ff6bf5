"""Probes: what is looked at while a scenario runs.

A probe sees every connection that is opened and is entered around the part of the scenario
that counts, so that one scenario serves for timing, recording, counting and profiling alike.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import apsw


class Probe:
    """Looks at nothing; the base of those that do."""

    def watching(self) -> contextlib.AbstractContextManager[object]:
        """Around the whole scenario, before anything is opened."""
        return self._hooked()

    @contextlib.contextmanager
    def _hooked(self) -> Iterator[None]:
        apsw.connection_hooks.append(self.opened)
        try:
            yield
        finally:
            apsw.connection_hooks.remove(self.opened)

    def opened(self, connection: apsw.Connection) -> None:
        """Called with each connection that is opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """The part that counts is over."""

    def closed(self, folder: Path) -> None:
        """The scenario has closed everything; its files are still there."""


class TimingProbe(Probe):
    """Time, CPU time (of all threads, and of children that were waited for) and commits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_s = 0.0
        self.commits = 0
        self._seen = 0

    def opened(self, connection: apsw.Connection) -> None:
        connection.set_commit_hook(self._committing)

    def _committing(self) -> bool:
        self._seen += 1
        return False  # True would turn the commit into a rollback

    def __enter__(self) -> Self:
        self._seen = 0
        self._cpu_s = cpu_s()
        self._began = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_s = cpu_s() - self._cpu_s
        self.commits = self._seen


def cpu_s() -> float:
    """CPU time of this process and of its children that were waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
