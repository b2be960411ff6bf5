"""What everything is called on AWS: by stage, so that several installations share an account."""

from __future__ import annotations

from dataclasses import dataclass

from longshore.core.tasks.states import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The names of one installation's parts; the stacks in ``infra`` give them the same."""

    stage: str
    bucket: str

    @property
    def ledger(self) -> str:
        """Table of the rows of jobs and tasks."""
        return self._qualified("ledger")

    @property
    def events(self) -> str:
        """Table of the history of everything."""
        return self._qualified("events")

    @property
    def output(self) -> str:
        """Table of what attempts print."""
        return self._qualified("output")

    @property
    def config(self) -> str:
        """Table of what is few: definitions, keys, pauses."""
        return self._qualified("config")

    @property
    def bus(self) -> str:
        """The bus on which events are told."""
        return self._qualified("events")

    def queue(self, name: str, priority: Priority) -> str:
        """Of the messages of one queue and priority."""
        return self._qualified(f"{name}-{priority.name.lower()}")

    def dead_letter_queue(self, name: str, priority: Priority) -> str:
        """Of those of them that were received too often."""
        return f"{self.queue(name, priority)}-dead"

    def consumer(self, name: str) -> str:
        """The queue by which a consumer hears of events."""
        return self._qualified(f"{name}-events")

    def _qualified(self, name: str) -> str:
        return f"longshore-{self.stage}-{name}"
