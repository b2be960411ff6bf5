"""A backend: one adapter for every port, made to work together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from longshore.ports.blobs import BlobStore
from longshore.ports.clock import Clock
from longshore.ports.configuration import Budgets, Definitions, Keys, QueueControls
from longshore.ports.events import EventBus, EventLog
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputLog
from longshore.ports.task_queue import TaskQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What services are handed."""

    name: str
    clock: Clock
    ledger: Ledger
    queue: TaskQueue
    queue_controls: QueueControls
    events: EventLog
    bus: EventBus
    output: OutputLog
    blobs: BlobStore
    definitions: Definitions
    keys: Keys
    budgets: Budgets
    close: Callable[[], Awaitable[None]]
    # Where each look is paid for: how far the pause between two of them may grow while nothing
    # comes. None: looking costs nothing.
    idle_poll_limit: timedelta | None = None
