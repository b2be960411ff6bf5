"""What really became of attempts, as only somebody who sees all machines at once can know."""

from __future__ import annotations

from dataclasses import dataclass, field

StepId = tuple[str, str | None, str]
"""The task, the reviewer's words that it works by, and the name of the step."""


@dataclass(slots=True)
class AttemptRecord:
    """What really became of one attempt."""

    process: str
    task_id: str
    attempt: int
    fence: int
    started_at: float
    ended_at: float | None = None
    succeeded: bool = False
    machine_paused: bool = False  # while it lived, or while its lease did before


@dataclass(slots=True)
class AttemptRecords:
    """All attempts of a run."""

    all: list[AttemptRecord] = field(default_factory=list)
    saved_steps: dict[StepId, None] = field(default_factory=dict)
    repeated_steps: list[tuple[AttemptRecord, str]] = field(
        default_factory=list
    )  # steps that had been kept
