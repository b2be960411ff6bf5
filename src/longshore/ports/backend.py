"""A backend: one adapter for every port, made to work together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from longshore.ports.accounts import Accounts
from longshore.ports.blobs import BlobStore
from longshore.ports.clock import Clock
from longshore.ports.definitions import Definitions
from longshore.ports.events import EventBus, EventLog
from longshore.ports.keys import Keys
from longshore.ports.ledger import Ledger
from longshore.ports.output import OutputLog
from longshore.ports.queue import TaskQueue
from longshore.ports.queues import Queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What services are handed."""

    name: str
    clock: Clock
    ledger: Ledger
    queue: TaskQueue
    queues: Queues
    events: EventLog
    bus: EventBus
    output: OutputLog
    blobs: BlobStore
    definitions: Definitions
    keys: Keys
    accounts: Accounts
    close: Callable[[], Awaitable[None]]
    # Where each look is paid for: how far the pause between two of them may grow while nothing
    # comes. None: looking costs nothing.
    idle_look: timedelta | None = None
