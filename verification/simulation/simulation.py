"""The state that all parts of a run share: clock, store, faults, trace and monitors."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from math import inf
from random import Random
from typing import Any

from longshore.core.tasks.rows import TaskRow
from longshore.settings import Settings
from longshore.testing.memory.backend import memory_backend
from longshore.wiring.services import DEFAULT_INTERVALS, Intervals
from verification.simulation.alerts import AlertMonitor
from verification.simulation.faults import Fault, FaultProfile, Faults
from verification.simulation.history import AttemptRecords, History
from verification.simulation.monitor import PauseMonitor, observe_commits
from verification.simulation.spending import Spending
from verification.simulation.stream_backend import make_stream_backend
from verification.simulation.workload import ActionKind

START = datetime(2030, 1, 7, 12, tzinfo=UTC)
TENANT = "acme"
_SLOTS_CHANCE = 0.5


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """An entry of the trace."""

    at: float
    source: str
    action: str
    subject: str = ""

    def __str__(self) -> str:
        return f"{self.at:10.3f}  {self.source:<12} {self.action:<24} {self.subject}".rstrip()


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """A violation of an invariant (by its number), or of another expectation (0)."""

    invariant: int
    subject: str
    text: str

    def __str__(self) -> str:
        what = f"invariant {self.invariant}" if self.invariant else "no invariant"
        return f"{what}: {self.subject}: {self.text}"


class SimulationClock:
    """The true time, which the store and the queue use."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> datetime:
        return START + timedelta(seconds=self._loop.time())

    def elapsed(self) -> timedelta:
        return timedelta(seconds=self._loop.time())

    async def sleep(self, duration: timedelta) -> None:
        await asyncio.sleep(max(duration.total_seconds(), 0.0))


class Simulation:
    """The shared state of a run."""

    def __init__(
        self,
        seed: int,
        settings: Settings,
        *,
        atomic: bool,
        without: Collection[Fault] = (),
        profile: FaultProfile = FaultProfile.DEFAULT,
        intervals: Intervals = DEFAULT_INTERVALS,
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.intervals = intervals
        self.profile = profile
        self.faults = Faults(self.random_for("faults"), without, profile)
        self.clock = SimulationClock()
        self.writes_refused_until = 0.0
        if profile is FaultProfile.AWS:
            bus, removals = self.random_for("bus"), self.random_for("removals")
            self.backend = make_stream_backend(self.clock, self.faults, bus, removals)
        else:
            self.backend = memory_backend(self.clock, atomic=atomic)
            observe_commits(self.backend)
        if not settings.retention.jobs:
            self.backend = replace(self.backend, retention=None)
        self.trace: list[TraceEntry] = []
        self.violations: list[Violation] = []
        self.attempt_records = AttemptRecords()
        self.spending = Spending()
        self.removed_tasks: dict[str, TaskRow] = {}  # as they were when their job was removed
        self.history = History(self)
        self.pause_monitor = PauseMonitor(self)
        self.alert_monitor = AlertMonitor(self)
        self.action_counts: Counter[ActionKind] = Counter()
        # In the other runs the runner starts every attempt.
        self.uses_slots = self.random_for("runner or slots").random() < _SLOTS_CHANCE
        self.calm_from = inf  # from here on no fault has an effect
        self.running_processes: dict[str, None] = {}  # by name
        self.ended = False
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def random_for(self, purpose: str) -> Random:
        """A random generator for a purpose; its draws do not change those of another."""
        return Random(f"{self.seed}/{purpose}")

    def time(self) -> float:
        """Seconds since the start of the run."""
        return self._loop.time()

    def record(self, source: str, action: str, subject: str = "") -> None:
        """Add an entry to the trace."""
        self.trace.append(TraceEntry(self.time(), source, action, subject))

    def record_action(self, source: str, action: ActionKind, subject: str) -> None:
        """A client's action succeeded and was answered."""
        self.action_counts[action] += 1
        self.record(source, action.name.lower().replace("_", " "), subject)

    def report_violation(self, invariant: int, subject: str, text: str) -> None:
        self.record("WRONG", f"invariant {invariant}", f"{subject}: {text}")
        self.violations.append(Violation(invariant, subject, text))

    def start_task(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a background task."""
        task = asyncio.ensure_future(coroutine)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    def call_at(self, moment: float, callback: Callable[[], object]) -> None:
        """Call back at a time of the run."""
        self._loop.call_at(moment, callback)

    def digest(self) -> str:
        """A hash of the trace: equal for equal runs."""
        hashed = blake2b(digest_size=16)
        for entry in self.trace:
            hashed.update(f"{entry.at!r} {entry.source} {entry.action} {entry.subject}\n".encode())
        return hashed.hexdigest()
