"""The body of ``longshore doctor --audit``: holds all that is stored against the invariants.

A folder, or the tables on AWS, are read a few jobs at a time, so much of it takes time and little
memory, and workers that are at it are not kept waiting. Nothing is changed, and nothing is mended:
what is found here is either damage or a fault of Longshore, and both want a person's eye.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore.errors import BackendError
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, console, print_pairs, print_table
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.audit.store_snapshot import StoreSnapshot

_MAX_FINDINGS = 1_000
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class InvariantText:
    """An invariant: its name, and what to do about what breaks it."""

    name: str
    advice: str


INVARIANT_TEXTS = {
    1: InvariantText("nothing accepted is lost", "it will not go on by itself: submit it again"),
    2: InvariantText(
        "one live lease a task", "it may have run twice at once: look at what it did outside"
    ),
    3: InvariantText(
        "a stale writer changes nothing", "do not trust this attempt's result: run it again"
    ),
    4: InvariantText("terminal is terminal", "see `longshore events` for who moved it on"),
    5: InvariantText("state and history agree", "restore a backup from before the damage"),
    6: InvariantText(
        "order of dependencies", "it may have run without its parents' results: run it again"
    ),
    7: InvariantText("a job ends once a round", "see `longshore job` for what became of its tasks"),
    8: InvariantText("output is complete", "some of what it printed is not there; its result is"),
    9: InvariantText(
        "same request id, same job", "a request may have run twice: look at both jobs"
    ),
    11: InvariantText("limits hold", "see `longshore events` for how often it ran, and when"),
    13: InvariantText("tenants do not meet", "find out who has seen what was not theirs"),
}


@dataclass(slots=True)
class AuditSummary:
    """What was looked at, and what was found."""

    jobs: int = 0
    tasks: int = 0
    events: int = 0
    duration: timedelta = timedelta(0)
    counts: Counter[int] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)  # the first of them
    unstable_jobs: int = 0  # jobs that changed for as long as they were looked at
    unreadable: str | None = None

    @property
    def passed(self) -> bool:
        """Whether everything could be read, and nothing was found."""
        return self.unreadable is None and not self.counts

    def add(self, snapshot: StoreSnapshot) -> None:
        """Add what is found in the evidence of some jobs."""
        from longshore.audit.audit import audit

        self.jobs += len(snapshot.jobs)
        self.tasks += len(snapshot.tasks)
        self.events += len(snapshot.events)
        for violation in audit(snapshot):
            self.counts[violation.invariant] += 1
            if len(self.findings) < _MAX_FINDINGS:
                self.findings.append((violation.invariant, violation.subject, violation.text))

    def summary_line(self) -> str:
        """The whole of it in a line."""
        if self.unreadable is not None:
            return f"it cannot be read: {self.unreadable}"
        seen = ", ".join(
            (
                formats.plural(self.jobs, "job"),
                formats.plural(self.tasks, "task"),
                formats.plural(self.events, "event"),
            )
        )
        if self.unstable_jobs:
            left = formats.plural(self.unstable_jobs, "job")
            seen += f" ({left} more would not stand still and were left out)"
        if self.passed:
            duration = formats.duration_text(self.duration)
            return f"{seen}: invariants 1 to 9, 11 and 13 hold ({duration})"
        total = formats.plural(self.counts.total(), "finding")
        return f"{total} in {seen}; nothing was changed. Keep a copy of all of it, and report it"

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "jobs": self.jobs,
            "tasks": self.tasks,
            "events": self.events,
            "unstableJobs": self.unstable_jobs,
            "seconds": round(self.duration.total_seconds(), 3),
            "counts": {str(number): count for number, count in sorted(self.counts.items())},
            "findings": [
                {
                    "invariant": number,
                    "name": INVARIANT_TEXTS[number].name,
                    "subject": subject,
                    "text": text,
                    "advice": INVARIANT_TEXTS[number].advice,
                }
                for number, subject, text in self.findings
            ],
        }

    def print(self) -> None:
        """The findings below each other, and what to do about them, for a person."""
        print_table(
            [Column("INVARIANT", right=True), Column("WHERE"), Column("FOUND", flexible=True)],
            [[str(number), subject, text] for number, subject, text in self.findings[:_SHOWN]],
        )
        if (more := self.counts.total() - _SHOWN) > 0:
            print(f"and {more:,} more: `longshore doctor --audit -o json`")
        print()
        laws = [(number, INVARIANT_TEXTS[number]) for number in sorted(self.counts)]
        print_pairs([(f"{number} {law.name}", law.advice) for number, law in laws])


def audit_folder(folder: Path, elapsed: Callable[[], timedelta]) -> AuditSummary:
    """Look at everything in a data folder."""
    from longshore.audit import sqlite_reader

    found, began = AuditSummary(), elapsed()
    try:
        size = sqlite_reader.count_rows(folder)
        with _progress(size.jobs) as advance:
            for piece in sqlite_reader.read_chunks(folder):
                found.add(piece.snapshot)
                advance(piece.jobs)
    except sqlite_reader.UnreadableStore as error:
        found.unreadable = f"{error}; restore the folder from a backup"
    found.duration = elapsed() - began
    return found


async def audit_aws(settings: Settings, elapsed: Callable[[], timedelta]) -> AuditSummary:
    """Look at everything in the tables of an installation on AWS.

    Raises:
        ConfigurationError: the settings do not say where that is.
    """
    from longshore.audit import dynamo_reader
    from longshore.wiring.backends import open_installation

    found, began = AuditSummary(), elapsed()
    try:
        async with open_installation(settings) as (call, names):
            place = dynamo_reader.InstallationNames(
                names.ledger, names.events, names.output, names.bucket
            )
            with _progress(await dynamo_reader.count_jobs(call, place)) as advance:
                async for piece in dynamo_reader.read_chunks(call, place):
                    found.add(piece.snapshot)
                    found.unstable_jobs += piece.skipped
                    advance(piece.jobs + piece.skipped)
    except BackendError as error:
        found.unreadable = str(error)
    found.duration = elapsed() - began
    return found


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal that is gone at the end; nothing where there is none."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console(stderr=True)
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        bar = progress.add_task("jobs", total=total)
        yield lambda jobs: progress.advance(bar, jobs)
