"""A backend: one adapter for each port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from longshore.errors import UsageError
from longshore.ports.blobs import BlobStore
from longshore.ports.clock import Clock
from longshore.ports.configuration import Budgets, Definitions, Keys, QueueControls
from longshore.ports.events import EventBus, EventLog
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputLog
from longshore.ports.retention import Retention
from longshore.ports.task_queue import TaskQueue
from longshore.ports.task_source import TaskSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """All ports of a backend.

    A backend has a task source of its own, or a queue and a bus, from which the services build one.
    """

    name: str
    clock: Clock
    ledger: Ledger
    queue_controls: QueueControls
    events: EventLog
    output: OutputLog
    blobs: BlobStore
    definitions: Definitions
    keys: Keys
    budgets: Budgets
    source: TaskSource | None = None
    queue: TaskQueue | None = None
    bus: EventBus | None = None
    retention: Retention | None = None  # None: jobs are kept
    # Writes something that changes nothing, in the way of every durable write, or raises
    # ``BackendUnavailable`` with the reason; None: a read shows as much.
    prove_write: Callable[[], Awaitable[None]] | None = None
    # Whether a coroutine of its ports can run without an event loop, on any thread: it then blocks
    # where it would wait. Only for ports that submit a job.
    blocking: bool = False
    # The longest pause between two polls of an idle queue, if each poll costs money; else None.
    idle_poll_limit: timedelta | None = None

    def require_retention(self) -> Retention:
        """Returns the port that removes jobs.

        Raises:
            UsageError: the backend has none.
        """
        if self.retention is None:
            raise UsageError(f"the backend {self.name!r} cannot remove jobs yet")
        return self.retention

    def require_queue(self) -> TaskQueue:
        """Returns the queue.

        Raises:
            UsageError: the backend has none.
        """
        if self.queue is None:
            raise UsageError(f"the backend {self.name!r} has no queue")
        return self.queue

    def require_bus(self) -> EventBus:
        """Returns the bus.

        Raises:
            UsageError: the backend has none.
        """
        if self.bus is None:
            raise UsageError(f"the backend {self.name!r} has no bus")
        return self.bus
