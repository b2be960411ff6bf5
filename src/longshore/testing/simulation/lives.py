"""What really became of attempts, as only somebody who sees all machines at once can know."""

from __future__ import annotations

from dataclasses import dataclass, field

StepId = tuple[str, str | None, str]
"""The task, the reviewer's words that it works by, and the name of the step."""


@dataclass(slots=True)
class Life:
    """What really became of one attempt."""

    process: str
    task_id: str
    attempt: int
    fence: int
    began: float
    ended: float | None = None
    succeeded: bool = False
    machine_stood_still: bool = False  # while it lived, or while its lease did before


@dataclass(slots=True)
class Lives:
    """All attempts of a run."""

    all: list[Life] = field(default_factory=list)
    steps_kept: dict[StepId, None] = field(default_factory=dict)
    done_again: list[tuple[Life, str]] = field(default_factory=list)  # steps that had been kept
