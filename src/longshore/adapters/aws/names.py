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
        return f"{self.prefix}ledger"

    @property
    def events(self) -> str:
        """The table of events."""
        return f"{self.prefix}events"

    @property
    def output(self) -> str:
        """The table of output."""
        return f"{self.prefix}output"

    @property
    def config(self) -> str:
        """The table of definitions, API keys, queue pauses and budgets."""
        return f"{self.prefix}config"

    @property
    def tables(self) -> tuple[str, ...]:
        return self.ledger, self.events, self.output, self.config

    @property
    def bus(self) -> str:
        """The event bus."""
        return f"{self.prefix}events"

    def queue(self, name: str, priority: Priority) -> str:
        """The SQS queue of a lane."""
        return f"{self.prefix}{name}-{priority.name.lower()}"

    def dead_letter_queue(self, name: str, priority: Priority) -> str:
        """The SQS queue of a lane's dead letters."""
        return f"{self.queue(name, priority)}-dead"

    def consumer(self, name: str) -> str:
        """The SQS queue from which a consumer receives events."""
        return f"{self.prefix}{name}-events"

    def dead_letter_lane(self, name: str) -> tuple[str, Priority] | None:
        """The inverse of ``dead_letter_queue``; None: the name of another queue."""
        for priority in Priority:
            suffix = self.dead_letter_queue("", priority).removeprefix(self.prefix)
            queue = name.removeprefix(self.prefix).removesuffix(suffix)
            if self.dead_letter_queue(queue, priority) == name:
                return queue, priority
        return None

    @property
    def prefix(self) -> str:
        """What every name but the bucket's begins with."""
        return f"longshore-{self.stage}-"
