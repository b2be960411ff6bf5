"""The audit of ``longshore doctor --audit``: checks everything that is stored.

The store is read a few jobs at a time, so that the audit needs little memory and workers can go on.
Nothing is changed or repaired: a finding is either damage or a bug in Longshore, and a person has
to look at both.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longshore.core.inspection import Check, CheckStatus
from longshore.errors import BackendError
from longshore.interfaces.cli.render import formats, screen
from longshore.settings import Settings

if TYPE_CHECKING:
    from longshore.audit.store_snapshot import StoreSnapshot

_MAX_FINDINGS = 1_000
_SHOWN = 20


# The name of each invariant, and what to do about a violation.
INVARIANT_TEXTS = {
    1: ("accepted work is not lost", "submit it again: it does not continue by itself"),
    2: ("one live lease per task", "it may have run twice at once: check its side effects"),
    3: ("a stale writer changes nothing", "do not trust this attempt's result: run it again"),
    4: ("terminal states are final", "see `longshore events` for what changed it"),
    5: ("state and history agree", "restore a backup from before the damage"),
    6: ("dependencies run first", "it may have run without its parents' results: run it again"),
    7: ("a job ends once per round", "see `longshore job` for the state of its tasks"),
    8: ("output is complete", "part of its output is missing; its result is not"),
    9: ("same request id, same job", "a request may have run twice: compare both jobs"),
    11: ("limits hold", "see `longshore events` for how often it ran, and when"),
    13: ("tenants are isolated", "find out who has read data of another tenant"),
}


@dataclass(slots=True)
class AuditSummary:
    """What was audited, and the findings."""

    jobs: int = 0
    tasks: int = 0
    events: int = 0
    duration: timedelta = timedelta(0)
    counts: Counter[int] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)  # the first ones
    unstable_jobs: int = 0  # not audited: they kept changing
    unreadable: str | None = None

    def check(self) -> Check:
        """The audit as one of the checks of ``doctor``."""
        passed = self.unreadable is None and not self.counts
        return Check("history", CheckStatus.OK if passed else CheckStatus.FAIL, self._summary())

    def add(self, snapshot: StoreSnapshot) -> None:
        """Audit some jobs and add the findings."""
        from longshore.audit.audit import audit

        self.jobs += len(snapshot.jobs)
        self.tasks += len(snapshot.tasks)
        self.events += len(snapshot.events)
        for violation in audit(snapshot):
            self.counts[violation.invariant] += 1
            if len(self.findings) < _MAX_FINDINGS:
                self.findings.append((violation.invariant, violation.subject, violation.text))

    def _summary(self) -> str:
        if self.unreadable is not None:
            return f"it cannot be read: {self.unreadable}"
        audited = ", ".join(
            formats.plural(count, noun)
            for count, noun in ((self.jobs, "job"), (self.tasks, "task"), (self.events, "event"))
        )
        if self.unstable_jobs:
            skipped = formats.plural(self.unstable_jobs, "more job")
            audited += f" ({skipped} kept changing and could not be audited)"
        if not self.counts:
            duration = formats.duration_text(self.duration)
            return f"{audited}: no problems found ({duration})"
        total = formats.plural(self.counts.total(), "finding")
        return f"{total} in {audited}; nothing was changed. Keep a copy of the data and report it"

    def as_json(self) -> dict[str, Any]:
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
                    "name": INVARIANT_TEXTS[number][0],
                    "subject": subject,
                    "text": text,
                    "advice": INVARIANT_TEXTS[number][1],
                }
                for number, subject, text in self.findings
            ],
        }

    def print(self) -> None:
        """Print the first findings, and the advice for each violated invariant."""
        screen.print_table(
            [
                {"INVARIANT": str(number), "WHERE": subject, "FINDING": text}
                for number, subject, text in self.findings[:_SHOWN]
            ]
        )
        if (more := self.counts.total() - _SHOWN) > 0:
            print(f"and {more:,} more: `longshore doctor --audit -o json`")
        print()
        violated = [(number, *INVARIANT_TEXTS[number]) for number in sorted(self.counts)]
        screen.print_pairs([(f"{number} {name}", advice) for number, name, advice in violated])


def audit_folder(folder: Path, elapsed: Callable[[], timedelta]) -> AuditSummary:
    """Audit a data folder."""
    from longshore.audit import sqlite_reader

    summary, started = AuditSummary(), elapsed()
    try:
        with _progress(sqlite_reader.count_rows(folder).jobs) as advance:
            for chunk in sqlite_reader.read_chunks(folder):
                summary.add(chunk.snapshot)
                advance(chunk.jobs)
    except sqlite_reader.UnreadableStore as error:
        summary.unreadable = f"{error}; restore the folder from a backup"
    summary.duration = elapsed() - started
    return summary


async def audit_aws(settings: Settings, elapsed: Callable[[], timedelta]) -> AuditSummary:
    """Audit the tables of an AWS deployment.

    Raises:
        ConfigurationError: the settings do not name the deployment.
    """
    from longshore.audit import dynamo_reader
    from longshore.wiring.backends import open_installation

    summary, started = AuditSummary(), elapsed()
    try:
        async with open_installation(settings) as (call, names):
            tables = dynamo_reader.InstallationNames(
                names.ledger, names.events, names.output, names.bucket
            )
            with _progress(await dynamo_reader.count_jobs(call, tables)) as advance:
                async for chunk in dynamo_reader.read_chunks(call, tables):
                    summary.add(chunk.snapshot)
                    summary.unstable_jobs += chunk.skipped
                    advance(chunk.jobs + chunk.skipped)
    except BackendError as error:
        summary.unreadable = str(error)
    summary.duration = elapsed() - started
    return summary


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, which disappears at the end; nothing elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    terminal = screen.console(stderr=True)
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as progress:
        bar = progress.add_task("jobs", total=total)
        yield lambda jobs: progress.advance(bar, jobs)
