"""Paused and held queues: who was told of a pause when, and who begins something all the same.

What counts is what a worker knew when it was handed a message: what it does with it afterwards may
take long. One that is told late is excused only by trouble on its own line.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from verification.simulation.simulation import Simulation

# "Every worker knows within about a second": and one more, because it may have had trouble before.
_NOTICE_LIMIT_S = 2.5
# A hold ends by the clock of whoever looks.
_MAX_SKEW_S = 2.0


class QueueProcess(Protocol):
    """What has to be known of a process that serves queues."""

    @property
    def name(self) -> str: ...
    def was_paused(self, since: float) -> bool:
        """Whether its machine did at some time since then."""
        ...


@dataclass(frozen=True, slots=True)
class _SeenPauses:
    paused: frozenset[str]
    at: float


class PauseMonitor:
    """The switches of all queues, and what every process knows of them."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._paused_since: dict[str, float] = {}
        self._resumed_at: dict[str, float] = {}  # by queue: its last pause
        self._holds: dict[str, tuple[float, float]] = {}  # by queue: since when and until when
        self._seen_pauses: dict[str, _SeenPauses] = {}  # by process
        self._delayed_until: dict[str, float] = {}  # by process
        self._received: dict[tuple[str, str], str | None] = {}  # by process and task: what is wrong

    def on_switched(self, queue: str, *, paused: bool) -> None:
        """A queue is paused, or served, from now on."""
        if not paused:
            self._paused_since.pop(queue, None)
            self._holds.pop(queue, None)
            self._resumed_at[queue] = self._simulation.time()
        elif queue not in self._paused_since:
            self._paused_since[queue] = self._simulation.time()

    def on_hold(self, queue: str, duration_s: float) -> None:
        """A queue is held from now on for so long, or has been and is for longer."""
        now = self._simulation.time()
        since, until = self._holds.get(queue, (now, now))
        self._holds[queue] = (since if until > now else now, now + duration_s)

    def on_answered(self, queue: str, requested_at: float) -> None:
        """Somebody was told that the queue is paused: it is, or was until somebody else came."""
        if queue not in self._paused_since and self._resumed_at.get(queue, -1.0) < requested_at:
            self._simulation.report_violation(
                0, queue, "somebody was told that it is paused, and it is not"
            )

    def on_informed(self, who: str, paused: Collection[str]) -> None:
        """A process is told which queues are paused."""
        self._seen_pauses[who] = _SeenPauses(frozenset(paused), self._simulation.time())

    def on_delay(self, who: str, duration_s: float = 0.0) -> None:
        """What a process asks now is not answered, or that much later."""
        until = self._simulation.time() + duration_s
        self._delayed_until[who] = max(until, self._delayed_until.get(who, 0.0))

    def on_received(self, who: QueueProcess, task_id: str, queue: str) -> None:
        """A process has a message in its hands. The first for a task counts: it may be slow."""
        self._received.setdefault((who.name, task_id), self._violation_text(who, queue))

    def _violation_text(self, who: QueueProcess, queue: str) -> str | None:
        now, since = self._simulation.time(), self._stopped_since(queue)
        known = self._seen_pauses.get(who.name)
        if known is not None and queue in known.paused:
            return f"knows that {queue!r} is paused" if known.at < now else None
        if since is None or who.was_paused(since):
            return None
        late = now - max(since, self._delayed_until.get(who.name, 0.0))
        if late <= _NOTICE_LIMIT_S:
            return None
        return f"has not heard that {queue!r} is paused for {late:.1f} s"

    def _stopped_since(self, queue: str) -> float | None:
        if queue in self._paused_since:
            return self._paused_since[queue]
        since, until = self._holds.get(queue, (0.0, 0.0))
        return since if self._simulation.time() < until - _MAX_SKEW_S else None

    def on_claimed(self, who: str, task_id: str) -> None:
        """A process begins an attempt."""
        if (wrong := self._received.pop((who, task_id), None)) is not None:
            self._simulation.report_violation(0, task_id, f"{who} begins it and {wrong}")
