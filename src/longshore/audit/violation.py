"""What the auditor says when something is not as it must be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    """An invariant of DESIGN's section 4 that does not hold, for whom, and how that shows."""

    invariant: int
    subject: str
    text: str

    def __str__(self) -> str:
        return f"invariant {self.invariant}: {self.subject}: {self.text}"
