"""A backend: one adapter for each port."""

from __future__ import annotations

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
    """All ports of a backend."""

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
    # The longest pause between two polls of an idle queue, if each poll costs money; else None.
    idle_poll_limit: timedelta | None = None
