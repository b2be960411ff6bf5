"""Paused and held queues: who was told of a pause when, and who begins something all the same.

What counts is what a worker knew when it was handed a message: what it does with it afterwards may
take long. One that is told late is excused only by trouble on its own line.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from longshore.testing.simulation.world import World

# "Every worker knows within about a second": and one more, because it may have had trouble before.
_ABOUT_A_SECOND = 2.5
# A hold ends by the clock of whoever looks.
_CLOCKS_DIFFER = 2.0


class Listener(Protocol):
    """What has to be known of a process that serves queues."""

    @property
    def name(self) -> str: ...
    def stood_still(self, since: float) -> bool:
        """Whether its machine did at some time since then."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    paused: frozenset[str]
    at: float


class Pauses:
    """The switches of all queues, and what every process knows of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._since: dict[str, float] = {}
        self._ended: dict[str, float] = {}  # by queue: its last pause
        self._holds: dict[str, tuple[float, float]] = {}  # by queue: since when and until when
        self._known: dict[str, _Known] = {}  # by process
        self._troubled_until: dict[str, float] = {}  # by process
        self._handed: dict[tuple[str, str], str | None] = {}  # by process and task: what is wrong

    def switched(self, queue: str, *, paused: bool) -> None:
        """A queue is paused, or served, from now on."""
        if not paused:
            self._since.pop(queue, None)
            self._holds.pop(queue, None)
            self._ended[queue] = self._world.time()
        elif queue not in self._since:
            self._since[queue] = self._world.time()

    def held(self, queue: str, lasts: float) -> None:
        """A queue is held from now on for so long, or has been and is for longer."""
        now = self._world.time()
        since, until = self._holds.get(queue, (now, now))
        self._holds[queue] = (since if until > now else now, now + lasts)

    def answered(self, queue: str, asked: float) -> None:
        """Somebody was told that the queue is paused: it is, or was until somebody else came."""
        if queue not in self._since and self._ended.get(queue, -1.0) < asked:
            self._world.breach(0, queue, "somebody was told that it is paused, and it is not")

    def told(self, who: str, paused: Collection[str]) -> None:
        """A process is told which queues are paused."""
        self._known[who] = _Known(frozenset(paused), self._world.time())

    def trouble(self, who: str, lasts: float = 0.0) -> None:
        """What a process asks now is not answered, or that much later."""
        until = self._world.time() + lasts
        self._troubled_until[who] = max(until, self._troubled_until.get(who, 0.0))

    def handed(self, who: Listener, task_id: str, queue: str) -> None:
        """A process has a message in its hands. The first for a task counts: it may be slow."""
        self._handed.setdefault((who.name, task_id), self._wrong(who, queue))

    def _wrong(self, who: Listener, queue: str) -> str | None:
        now, since = self._world.time(), self._stopped_since(queue)
        known = self._known.get(who.name)
        if known is not None and queue in known.paused:
            return f"knows that {queue!r} is paused" if known.at < now else None
        if since is None or who.stood_still(since):
            return None
        late = now - max(since, self._troubled_until.get(who.name, 0.0))
        if late <= _ABOUT_A_SECOND:
            return None
        return f"has not heard that {queue!r} is paused for {late:.1f} s"

    def _stopped_since(self, queue: str) -> float | None:
        if queue in self._since:
            return self._since[queue]
        since, until = self._holds.get(queue, (0.0, 0.0))
        return since if self._world.time() < until - _CLOCKS_DIFFER else None

    def claimed(self, who: str, task_id: str) -> None:
        """A process begins an attempt."""
        if (wrong := self._handed.pop((who, task_id), None)) is not None:
            self._world.breach(0, task_id, f"{who} begins it and {wrong}")
