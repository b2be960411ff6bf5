"""``longshore doctor`` and ``longshore settings``: check and show this installation.

A check ends in *ok*, *warn* or *fail*; only *fail* makes ``doctor`` fail. ``doctor`` changes
nothing; its test write stores no new value. It also has to work on a damaged store, so it does not
open the store for work.

With ``--audit`` it checks everything that is stored, a few jobs at a time, so that it needs little
memory and workers can go on. A finding is either damage or a bug in Longshore, and a person has to
look at both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longshore.core.inspection import Check, CheckStatus, StoreFacts
from longshore.errors import BackendError, ConfigurationError
from longshore.interfaces.cli.client import load_command_settings
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.options import GlobalOptions, command, flag
from longshore.interfaces.cli.render import formats, screen
from longshore.settings import DEFAULT, Settings, describe, unread_variables

if TYPE_CHECKING:
    from longshore.audit.store_snapshot import StoreSnapshot

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL
_MIN_FREE_BYTES = 1_000_000_000
_MAX_FINDINGS = 1_000
_RESTORE = "restore a backup: `longshore restore`, docs/howto/back-up-and-restore.md"
_SHOWN_FINDINGS = 20
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
# A clock that shows an earlier time is wrong.
_EARLIEST_TIME = datetime(2026, 1, 1, tzinfo=UTC)
_CREDENTIAL_VARIABLES = {
    "api_key": "ANTHROPIC_API_KEY",
    "auth_token": "ANTHROPIC_AUTH_TOKEN",
    "oauth_token": "CLAUDE_CODE_OAUTH_TOKEN",
}


@command(
    ("longshore settings", "the settings of this folder, and their origin"),
    ("LONGSHORE_WORKER_CONCURRENCY=8 longshore settings", "the environment overrides the file"),
    ("longshore settings -o json", "with descriptions and variables"),
)
def settings(options: GlobalOptions) -> None:
    """Show every setting with its value and its origin.

    A flag overrides the environment, the environment overrides the file longshore.toml, and the
    file overrides the default.
    """
    loaded = load_command_settings(options)
    rows = describe(loaded)
    if options.json:
        screen.print_json([row._asdict() for row in rows])
        return
    screen.print_table(
        [
            {
                "SETTING": row.name,
                "VALUE": row.value if len(row.value) <= 60 else f"{row.value[:59]}…",
                "ORIGIN": screen.styled(row.origin, "dim" if row.origin == DEFAULT else "bold"),
            }
            for row in rows
        ]
    )
    if unread := unread_variables(loaded.settings):
        print(f"not read without the setting compat_env: {', '.join(unread)}")


@command(
    ("longshore doctor", "check everything"),
    ("longshore doctor --audit", "also check every stored row, event and output"),
    ("longshore doctor -o json", "for a monitor"),
)
def doctor(
    options: GlobalOptions,
    *,
    audit: Annotated[bool, flag("Also check everything that is stored.", "--audit")] = False,
) -> int:
    """Check this installation, its data folder, its workers and its queues.

    With --audit, also check the history: an independent auditor reads every job and reports what
    was lost, done twice, out of order or incomplete. It takes some seconds for 10,000 tasks.
    Workers can keep running.

    On AWS it checks your identity, whether each service responds, the clock, and that every table,
    queue, rule and bucket is as `longshore aws deploy` creates it.

    Changes nothing; a test write shows that the store takes writes. Exits with 1 if a check fails.
    """
    checks: list[Check] = []
    summary: AuditSummary | None = None
    for result in _checks(options, audit=audit):
        if isinstance(result, AuditSummary):
            summary, result = result, result.check()
        checks.append(result)
    failed = any(check.status is FAIL for check in checks)
    if options.json:
        answer: dict[str, object] = {"ok": not failed, "checks": [asdict(item) for item in checks]}
        if audit:
            answer["audit"] = summary.as_json() if summary else None
        screen.print_json(answer)
    else:
        screen.print_table([_check_row(check) for check in checks])
        if summary is not None and summary.findings:
            print()
            summary.print()
    return ExitCode.FAILED if failed else ExitCode.OK


def _check_row(check: Check) -> screen.Row:
    expected = f"expected: {check.expected}" if check.expected else None
    return {
        "CHECK": check.name,
        "": screen.styled(check.status.value, _STYLES[check.status]),
        "RESULT": "; ".join(filter(None, (check.detail, expected, check.remedy))),
    }


def _checks(options: GlobalOptions, *, audit: bool) -> Iterator[Check | AuditSummary]:
    yield _version_check()
    try:
        settings = load_command_settings(options).settings
    except ConfigurationError as error:
        yield Check("settings", FAIL, str(error))
        return
    yield Check("settings", OK, f"tenant {settings.tenant}, backend {settings.backend}")
    yield _agent_check(settings)
    if settings.backend == "aws":
        yield from _aws_checks(settings, audit=audit)
    else:
        yield from _store_checks(settings, audit=audit)


def _version_check() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    detail = f"longshore {version('longshore')}, Python {platform.python_version()}, {system}"
    if sys.platform == "linux":
        return Check("versions", OK, detail)
    if sys.platform == "darwin":
        return Check("versions", WARN, f"{detail}: tasks run on Linux only")
    return Check("versions", FAIL, f"{detail}: not supported")


def _agent_check(settings: Settings) -> Check:
    """Never fails: agents are optional."""
    try:
        sdk = f"claude-agent-sdk {version('claude-agent-sdk')}"
    except PackageNotFoundError:
        remedy = "to run agents: pip install 'longshore[agent]'"
        return Check("agents", OK, "not installed", remedy=remedy)
    if settings.agent.credential is None:
        names = "ANTHROPIC_API_KEY or CLAUDE_CODE_OAUTH_TOKEN"
        remedy = f"to run agents: set {names} in the environment of the workers"
        return Check("agents", OK, f"{sdk}, not configured", remedy=remedy)
    variable = _CREDENTIAL_VARIABLES[settings.agent.credential[0]]
    address = f" at {settings.agent.base_url}" if settings.agent.base_url else ""
    sandboxed = all(shutil.which(name) for name in ("bwrap", "socat"))
    sandbox = "sandbox available" if sandboxed else "no sandbox (bubblewrap and socat)"
    return Check("agents", OK, f"{sdk}, {variable}{address}, {sandbox}")


def _store_checks(settings: Settings, *, audit: bool) -> Iterator[Check | AuditSummary]:
    from longshore.wiring.services import inspect_store, prove_store_write, system_clock

    facts = inspect_store(settings)
    engine = f"{facts.engine} from {facts.engine_path}"
    if not facts.engine_trusted:
        engine += "; two writers can damage a file: upgrade apsw"
    yield Check("sqlite", OK if facts.engine_trusted else FAIL, engine)
    yield from _folder_checks(facts)
    yield _clock_check(facts)
    if not facts.exists:
        yield Check("store", OK, "nothing has been stored yet")
        return
    if facts.unreadable is not None:
        detail = f"not checked: {facts.folder} cannot be read now: {facts.unreadable}"
        remedy = "check the free space and the permissions; nothing says that it is damaged"
        yield Check("integrity", FAIL, detail, remedy=remedy)
        return
    if facts.schema or facts.damage is None:
        yield _schema_check(facts)
    if facts.damage is not None:
        yield Check("integrity", FAIL, f"damaged: {facts.damage}", remedy=_RESTORE)
        return
    yield Check("integrity", OK, f"quick check passed, {formats.size(facts.size_bytes)}")
    if facts.schema == facts.supported_schema:
        problem = prove_store_write(settings)
        yield Check("write", FAIL if problem else OK, problem or "a test write was stored")
    yield _retention_check(settings, facts)
    yield from _worker_checks(settings, facts)
    if audit and facts.schema != facts.supported_schema:
        detail = f"not audited: only schema {facts.supported_schema} can be audited"
        yield Check("history", WARN, detail)
    elif audit:
        yield audit_folder(facts.folder, system_clock().elapsed)


def _aws_checks(settings: Settings, *, audit: bool) -> Iterator[Check | AuditSummary]:
    from longshore.wiring.deploy import diagnose_aws
    from longshore.wiring.services import inspect_store, system_clock

    facts = inspect_store(settings)  # of the folder in which attempts run
    yield from _folder_checks(facts)
    try:
        yield from asyncio.run(diagnose_aws(settings))
    except ConfigurationError as error:
        yield Check("aws library", FAIL, str(error))
        return
    if audit:
        yield asyncio.run(audit_aws(settings, system_clock().elapsed))


def _folder_checks(facts: StoreFacts) -> Iterator[Check]:
    kind = f" ({facts.file_system})" if facts.file_system else ""
    nearest = next(path for path in (facts.folder, *facts.folder.parents) if path.exists())
    status, detail = FAIL, f"{nearest} is not writable by this user"
    if not facts.local:
        detail = f"{facts.folder} is on a network file system{kind}; choose a local disk"
    elif os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        state = "" if facts.folder.exists() else ", does not exist yet: the first run creates it"
        status, detail = OK, f"{facts.folder}{kind}, writable{state}"
    yield Check("data folder", status, detail)
    free = shutil.disk_usage(nearest).free
    yield Check("disk", OK if free >= _MIN_FREE_BYTES else WARN, f"{formats.size(free)} free")


def _clock_check(facts: StoreFacts) -> Check:
    now = facts.inspected_at
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < _EARLIEST_TIME:
        return Check("clock", FAIL, f"{shown} is wrong: set the machine's clock")
    if facts.last_event_at is not None and facts.last_event_at > now:
        ahead = formats.duration_text(facts.last_event_at - now)
        detail = f"{shown}, but the last event is {ahead} later: was the clock set back?"
        return Check("clock", WARN, detail)
    return Check("clock", OK, shown)


def _schema_check(facts: StoreFacts) -> Check:
    schema, supported = facts.schema, facts.supported_schema
    if schema > supported:
        detail = f"{schema}, newer than this version supports ({supported}): upgrade"
        return Check("schema", FAIL, detail)
    if schema < supported:
        return Check("schema", WARN, f"{schema}; the next command upgrades it to {supported}")
    return Check("schema", OK, f"version {schema}")


def _retention_check(settings: Settings, facts: StoreFacts) -> Check:
    keep_for = settings.retention.jobs
    rule = (
        f"kept for {formats.duration_text(keep_for)}"
        if keep_for
        else "kept forever (retention.jobs)"
    )
    detail = f"{formats.plural(facts.ended_jobs, 'ended job')}, {rule}"
    if facts.oldest_end is not None:
        detail += (
            f", the oldest ended {formats.relative_time(facts.oldest_end, facts.inspected_at)}"
        )
    return Check("retention", OK, detail)


def _worker_checks(settings: Settings, facts: StoreFacts) -> Iterator[Check]:
    from longshore.wiring.services import open_worker_registry

    registry = open_worker_registry(settings)
    live, dead = registry.live_workers(), registry.dead_workers()
    shown = ", ".join(f"{name} ({', '.join(queues)})" for name, queues in live.items())
    if dead:
        shown = f"{', '.join(dead)} crashed; the next worker cleans up"
    yield Check("workers", WARN if dead else OK, shown or "none running")
    pipes = "no stale wake-up pipes"
    if stale := facts.stale_wakeups:
        number = formats.plural(stale, "wake-up pipe")
        pipes = f"{number} of dead processes; the next wake-up removes them"
    yield Check("wakeups", WARN if stale else OK, pipes)
    for name, depth in facts.queues:
        problem = ""
        if depth.dead_letters:
            problem = ": see `longshore dead list`"
        elif depth.ready and not any(name in queues for queues in live.values()):
            problem = f": no worker serves it; `longshore worker --queue {name}`"
        counts = f"{depth.ready} ready, {depth.hidden} in flight or delayed"
        detail = f"{counts}, {depth.dead_letters} dead{problem}"
        yield Check(f"queue {name}", WARN if problem else OK, detail)
    if not facts.queues:
        yield Check("queues", OK, "all empty")


# Audit ------------------------------------------------------------------------------------------

# The name of each invariant, and what to do about a violation.
INVARIANT_TEXTS = {
    1: ("accepted work is not lost", "submit it again: it does not continue by itself"),
    2: ("one live lease per task", "it may have run twice at once: check its side effects"),
    3: ("a stale writer changes nothing", "do not trust this attempt's result: run it again"),
    4: ("terminal states are final", "see `longshore events` for what changed it"),
    5: ("state and history agree", f"{_RESTORE} from before the damage"),
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
        return Check("history", OK if passed else FAIL, self._summary())

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
            "counts": dict(sorted(self.counts.items())),
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
                for number, subject, text in self.findings[:_SHOWN_FINDINGS]
            ]
        )
        if (more := self.counts.total() - _SHOWN_FINDINGS) > 0:
            print(f"and {more:,} more: `longshore doctor --audit -o json`")
        print()
        texts = [(number, *INVARIANT_TEXTS[number]) for number in sorted(self.counts)]
        screen.print_named({f"{number} {name}": advice for number, name, advice in texts})


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
        summary.unreadable = f"{error}; {_RESTORE}"
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
        async with open_installation(settings) as installation:
            call, names = installation.aws.call, installation.names
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

    terminal = screen.console(stderr=True, moves_cursor=True)
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"))
    with Progress(
        *columns, console=terminal, transient=True, disable=not terminal.is_terminal
    ) as progress:
        bar = progress.add_task("jobs", total=total)
        yield lambda jobs: progress.advance(bar, jobs)
