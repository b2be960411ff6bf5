"""Where the CPU goes: the loop's thread and the writer's thread, each in a run of its own.

One at a time, so that the other runs at full speed. CPU time, not wall time: both threads mostly
wait, and waiting is not what is looked for.
"""

from __future__ import annotations

import contextlib
import cProfile
import pstats
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

from benchmarks import enqueue, noops, transitions
from benchmarks.harness import Scenario, run
from benchmarks.probes import Probe
from benchmarks.scale import Scale

_LINES = 30
_MANY = 64


class _Loop(Probe):
    """The thread that the event loop runs on, in the part that counts."""

    def __init__(self) -> None:
        self.profile = cProfile.Profile(time.thread_time)

    def __enter__(self) -> Self:
        self.profile.enable()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.profile.disable()


class _Writer(Probe):
    """The writer's thread, from its start: only the thread itself can start a profiler."""

    def __init__(self) -> None:
        self.profile = cProfile.Profile(time.thread_time)

    def watching(self) -> contextlib.AbstractContextManager[object]:
        return self._new_threads_watched()

    @contextlib.contextmanager
    def _new_threads_watched(self) -> Iterator[None]:
        threading.setprofile(self._first_event)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _first_event(self, _frame: FrameType, _event: str, _argument: Any) -> None:
        sys.setprofile(None)
        if "writer" in threading.current_thread().name:
            self.profile.enable()


def profiles(name: str, scale: Scale) -> None:
    """Print what the threads of a scenario spend their time on."""
    for thread, probe in (("loop", _Loop()), ("writer", _Writer())):
        seen = run(scenarios(scale)[name], probe)
        print(f"{name}: the {thread}'s thread, seconds of CPU")
        pstats.Stats(seen.profile, stream=sys.stdout).sort_stats("tottime").print_stats(_LINES)


def scenarios(scale: Scale) -> dict[str, Scenario]:
    """What can be profiled."""
    return {
        "transitions": transitions.scenario(_MANY, scale.shared // _MANY * _MANY),
        "enqueue": enqueue.scenario(_MANY, scale.noops // _MANY * _MANY),
        "bulk": enqueue.bulk_scenario(scale.bulk),
        "noops": noops.scenario(_MANY, scale.noops),
        "noops_one_job": noops.scenario(_MANY, scale.noops, one_job=True),
    }
