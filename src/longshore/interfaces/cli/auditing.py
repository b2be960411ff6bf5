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
from longshore.interfaces.cli import words
from longshore.interfaces.cli.screen import Column, console, print_pairs, print_table
from longshore.ports.clock import Clock
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.testing.auditing.evidence import Evidence

_KEPT = 1_000
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Law:
    """An invariant: its name, and what to do about what breaks it."""

    name: str
    advice: str


LAWS = {
    1: Law("nothing accepted is lost", "it will not go on by itself: submit it again"),
    2: Law("one live lease a task", "it may have run twice at once: look at what it did outside"),
    3: Law("a stale writer changes nothing", "do not trust this attempt's result: run it again"),
    4: Law("terminal is terminal", "see `longshore events` for who moved it on"),
    5: Law("state and history agree", "restore a backup from before the damage"),
    6: Law("order of dependencies", "it may have run without its parents' results: run it again"),
    7: Law("a job ends once a round", "see `longshore job` for what became of its tasks"),
    8: Law("output is complete", "some of what it printed is not there; its result is"),
    9: Law("same request id, same job", "a request may have run twice: look at both jobs"),
    11: Law("limits hold", "see `longshore events` for how often it ran, and when"),
    13: Law("tenants do not meet", "find out who has seen what was not theirs"),
}


@dataclass(slots=True)
class Audit:
    """What was looked at, and what was found."""

    jobs: int = 0
    tasks: int = 0
    events: int = 0
    took: timedelta = timedelta(0)
    by_law: Counter[int] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)  # the first of them
    restless: int = 0  # jobs that changed for as long as they were looked at
    unreadable: str | None = None

    @property
    def sound(self) -> bool:
        """Whether everything could be read, and nothing was found."""
        return self.unreadable is None and not self.by_law

    def judge(self, evidence: Evidence) -> None:
        """Add what is found in the evidence of some jobs."""
        from longshore.testing.auditing.audit import audit

        self.jobs += len(evidence.jobs)
        self.tasks += len(evidence.tasks)
        self.events += len(evidence.events)
        for violation in audit(evidence):
            self.by_law[violation.invariant] += 1
            if len(self.findings) < _KEPT:
                self.findings.append((violation.invariant, violation.subject, violation.text))

    def sentence(self) -> str:
        """The whole of it in a line."""
        if self.unreadable is not None:
            return f"it cannot be read: {self.unreadable}"
        seen = ", ".join(
            (
                words.number_of(self.jobs, "job"),
                words.number_of(self.tasks, "task"),
                words.number_of(self.events, "event"),
            )
        )
        if self.restless:
            left = words.number_of(self.restless, "job")
            seen += f" ({left} more would not stand still and were left out)"
        if self.sound:
            return f"{seen}: invariants 1 to 9, 11 and 13 hold ({words.took(self.took)})"
        total = words.number_of(self.by_law.total(), "finding")
        return f"{total} in {seen}; nothing was changed. Keep a copy of all of it, and report it"

    def as_json(self) -> dict[str, Any]:
        """For a program."""
        return {
            "jobs": self.jobs,
            "tasks": self.tasks,
            "events": self.events,
            "restless": self.restless,
            "seconds": round(self.took.total_seconds(), 3),
            "found": {str(number): count for number, count in sorted(self.by_law.items())},
            "findings": [
                {
                    "invariant": number,
                    "name": LAWS[number].name,
                    "subject": subject,
                    "text": text,
                    "advice": LAWS[number].advice,
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
        if (more := self.by_law.total() - _SHOWN) > 0:
            print(f"and {more:,} more: `longshore doctor --audit -o json`")
        print()
        laws = [(number, LAWS[number]) for number in sorted(self.by_law)]
        print_pairs([(f"{number} {law.name}", law.advice) for number, law in laws])


def audited(folder: Path, clock: Clock) -> Audit:
    """Look at everything in a data folder."""
    from longshore.testing.auditing import from_sqlite

    found, began = Audit(), clock.elapsed()
    try:
        size = from_sqlite.size_of(folder)
        with _progress(size.jobs) as advance:
            for piece in from_sqlite.pieces_of(folder):
                found.judge(piece.evidence)
                advance(piece.jobs)
    except from_sqlite.Unreadable as error:
        found.unreadable = f"{error}; restore the folder from a backup"
    found.took = clock.elapsed() - began
    return found


async def audited_on_aws(settings: Settings, clock: Clock) -> Audit:
    """Look at everything in the tables of an installation on AWS.

    Raises:
        ConfigurationError: the settings do not say where that is.
    """
    from longshore.testing.auditing import from_dynamo
    from longshore.wiring.auditing import installation_of

    found, began = Audit(), clock.elapsed()
    try:
        async with installation_of(settings) as (call, names):
            place = from_dynamo.Place(names.ledger, names.events, names.output, names.bucket)
            with _progress(await from_dynamo.count_jobs(call, place)) as advance:
                async for piece in from_dynamo.pieces_of(call, place):
                    found.judge(piece.evidence)
                    found.restless += piece.restless
                    advance(piece.jobs + piece.restless)
    except BackendError as error:
        found.unreadable = str(error)
    found.took = clock.elapsed() - began
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
