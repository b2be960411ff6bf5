"""A planted fault: a small change of the code that a test must notice.

A suite that passes with any code proves nothing, so each fault names the test that must fail. A
fault that no test notices means that a test is missing.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.planting import Change, Operation

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


class Part(StrEnum):
    """The part of the code that a fault belongs to."""

    LEDGER = "ledger"
    QUEUE = "queue"
    QUEUE_CONTROLS = "queue controls"
    EVENTS = "events"
    BUS = "bus"
    OUTPUT = "output"
    BLOBS = "blobs"
    DEFINITIONS = "definitions"
    KEYS = "keys"
    SHARED_BUDGETS = "shared budgets"
    RETENTION = "retention"
    BACKUPS = "backups"
    BUDGETS = "budgets"
    CLOCK = "clock"
    SWEEPER = "sweeper"
    DEAD_LETTERS = "dead letters"
    OPERATOR_COMMANDS = "commands"  # cancel, resume, add tasks, review
    EXPLAIN = "explain"
    WORKER = "worker"
    ARTIFACTS = "artifacts"
    SUPERVISION = "supervision"
    WORKER_REGISTRY = "registry"
    CHILDREN = "children"
    AGENTS = "agents"
    APPLICATION = "application"
    RESILIENCE = "resilience"  # retries, races, error boundaries
    REQUESTS = "requests"
    RULES = "rules"
    SETTINGS = "settings"


BACKEND_PARTS = frozenset(
    {
        *(Part.LEDGER, Part.QUEUE, Part.EVENTS, Part.BUS, Part.OUTPUT),
        Part.RETENTION,
        *(Part.BLOBS, Part.DEFINITIONS, Part.KEYS, Part.QUEUE_CONTROLS, Part.SHARED_BUDGETS),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A symbol, a change of it, and the test that must fail."""

    name: str
    part: Part
    at: str  # the symbol, as `tests.planting` describes it
    do: Operation | tuple[Operation, ...]
    caught_by: str  # the node id of the test, without `tests/`

    @property
    def change(self) -> Change:
        """The change of the source."""
        return Change(self.at, self.do)
