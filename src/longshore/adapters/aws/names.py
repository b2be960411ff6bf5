"""Names of an installation's resources; the stage is part of each name.

Several installations can share an account. The stacks have the same names.
"""

from __future__ import annotations

from dataclasses import dataclass

from longshore.core.tasks.states import Priority

LISTING_INDEX, STATE_INDEX, NAME_INDEX = "listing", "state", "name"
"""Indexes of the ledger: by time of submission, by state, and jobs by name."""

UNDELIVERED = "undelivered"
"""The consumer whose queue takes the events that reached no other."""
EVENT_INDEXES = tuple(f"GSI{number}-index" for number in range(1, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one installation's resources, in code and in the templates alike."""

    stage: str
    bucket: str

    @property
    def ledger(self) -> str:
        """The table of job and task rows."""
        return self._qualified("ledger")

    @property
    def events(self) -> str:
        """The table of events."""
        return self._qualified("events")

    @property
    def output(self) -> str:
        """The table of output."""
        return self._qualified("output")

    @property
    def config(self) -> str:
        """The table of definitions, API keys, queue pauses and budgets."""
        return self._qualified("config")

    @property
    def tables(self) -> tuple[str, ...]:
        return self.ledger, self.events, self.output, self.config

    @property
    def bus(self) -> str:
        """The event bus."""
        return self._qualified("events")

    def queue(self, name: str, priority: Priority) -> str:
        """The SQS queue of a lane."""
        return self._qualified(f"{name}-{priority.name.lower()}")

    def dead_letter_queue(self, name: str, priority: Priority) -> str:
        """The SQS queue of a lane's dead letters."""
        return f"{self.queue(name, priority)}-dead"

    def consumer(self, name: str) -> str:
        """The SQS queue from which a consumer receives events."""
        return self._qualified(f"{name}-events")

    def _qualified(self, name: str) -> str:
        return f"longshore-{self.stage}-{name}"
