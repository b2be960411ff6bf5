"""How often the disk is made to write: counted at the door to the operating system, not estimated.

The scenarios run once more on a shim of SQLite's file layer that counts every sync of the log and
of the file itself. Files of large blobs do not pass that door; these scenarios have none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import apsw

from benchmarks import enqueue, noops, transitions
from benchmarks.figures import Figure
from benchmarks.harness import Scenario, run
from benchmarks.probes import TimingProbe
from benchmarks.scale import Scale

_REAL = "unix"
_NAME = "longshore-counting"
_MANY = 64


class _CountingFile(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], syncs: dict[str, int]) -> None:
        super().__init__(_REAL, name, flags)
        self._kind = "log" if flags[0] & apsw.SQLITE_OPEN_WAL else "file"
        self._syncs = syncs

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's own name for it
        self._syncs[self._kind] += 1
        super().xSync(flags)


class _CountingFiles(apsw.VFS):
    def __init__(self, syncs: dict[str, int]) -> None:
        self._syncs = syncs
        super().__init__(_NAME, _REAL, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - the name is apsw's
        return _CountingFile(name, flags, self._syncs)


class FsyncProbe(TimingProbe):
    """Also counts syncs."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = {"log": 0, "file": 0}

    def watching(self) -> contextlib.AbstractContextManager[object]:
        stack = contextlib.ExitStack()
        stack.enter_context(super().watching())
        stack.callback(_CountingFiles(self.syncs).unregister)
        return stack

    def __enter__(self) -> Self:
        self._before = dict(self.syncs)
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self.syncs = {name: self.syncs[name] - self._before[name] for name in self.syncs}


def measure(scale: Scale) -> Iterator[Figure]:
    """Syncs of each transition, job and task."""
    shared = scale.shared // _MANY * _MANY
    jobs = shared // 4 // _MANY * _MANY
    variants: tuple[tuple[str, Scenario, int], ...] = (
        ("fsyncs.transition_1", transitions.scenario(1, scale.single), scale.single),
        ("fsyncs.transition_64", transitions.scenario(_MANY, shared), shared),
        ("fsyncs.submit_64", enqueue.scenario(_MANY, jobs), jobs),
        ("fsyncs.task_3", noops.scenario(3, scale.noops), scale.noops),
        ("fsyncs.task_64", noops.scenario(_MANY, scale.noops), scale.noops),
    )
    for name, scenario, count in variants:
        yield _figure(name, run(scenario, FsyncProbe()), count)


def _figure(name: str, seen: FsyncProbe, count: int) -> Figure:
    total = sum(seen.syncs.values())
    return Figure(
        name=name,
        unit="each",
        value=total / count,
        details={
            "fsyncs": total,
            "of_the_log": seen.syncs["log"],
            "commits": seen.commits,
            "per_commit": count / max(1, seen.commits),
        },
    )
