"""A planted fault: a small change of the code that a test must notice.

A suite that stays green whatever the code does proves nothing, so each fault names the test that
has to go red. One that nobody notices means that a test is missing.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.planting import Change, Operation

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


class Part(StrEnum):
    """Whose tests must notice: the contract of a port, or what holds a service to its word."""

    LEDGER = "ledger"
    QUEUE = "queue"
    QUEUE_CONTROLS = "queues"  # which of them are paused
    EVENTS = "events"
    BUS = "bus"
    OUTPUT = "output"
    BLOBS = "blobs"
    DEFINITIONS = "definitions"
    KEYS = "keys"
    SHARED_BUDGETS = "accounts"
    BUDGETS = "budgets"
    CLOCK = "clock"
    SWEEPER = "sweeper"
    DEAD_LETTERS = "dead letters"
    OPERATOR_COMMANDS = "wishes"  # to cancel, to resume, to add, to review
    EXPLAIN = "explaining"
    WORKER = "worker"
    ARTIFACTS = "artifacts"
    SUPERVISION = "supervision"
    WORKER_REGISTRY = "presence"
    CHILDREN = "children"
    AGENTS = "agents"


BACKEND_PARTS = frozenset(
    {
        *(Part.LEDGER, Part.QUEUE, Part.EVENTS, Part.BUS, Part.OUTPUT),
        *(Part.BLOBS, Part.DEFINITIONS, Part.KEYS, Part.QUEUE_CONTROLS, Part.SHARED_BUDGETS),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A symbol, what is done to it, and the test that must fail then."""

    name: str
    part: Part
    at: str  # the symbol, as `tests.planting` takes it
    do: Operation | tuple[Operation, ...]
    caught_by: str  # the test, as pytest knows it, below tests

    @property
    def change(self) -> Change:
        """What is done to the source."""
        return Change(self.at, self.do)
