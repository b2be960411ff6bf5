"""``longshore doctor`` and ``longshore settings``: check and show this installation.

A check ends in *ok*, *warn* or *fail*; only *fail* makes ``doctor`` fail. ``doctor`` changes
nothing. It also has to work on a damaged store, so it does not open the store for work.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from rich.text import Text

from longshore.core.inspection import Check, CheckStatus, StoreFacts
from longshore.errors import ConfigurationError
from longshore.interfaces.cli.client import load_command_settings
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.history_audit import AuditSummary, audit_aws, audit_folder
from longshore.interfaces.cli.options import GlobalOptions, command, flag
from longshore.interfaces.cli.render import formats, screen
from longshore.settings import DEFAULT, Settings, describe

OK, WARN, FAIL = CheckStatus.OK, CheckStatus.WARN, CheckStatus.FAIL
_MIN_FREE_BYTES = 1_000_000_000
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
    rows = describe(load_command_settings(options))
    if options.json:
        screen.print_json([row._asdict() for row in rows])
        return
    screen.print_table(
        [
            {
                "SETTING": row.name,
                "VALUE": row.value if len(row.value) <= 60 else f"{row.value[:59]}…",
                "ORIGIN": Text(row.origin, style="dim" if row.origin == DEFAULT else "bold"),
            }
            for row in rows
        ]
    )


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

    Changes nothing. Exits with 1 if a check fails.
    """
    results = list(_checks(options, audit=audit))
    audits = [result for result in results if isinstance(result, AuditSummary)]
    checks = [result if isinstance(result, Check) else result.check() for result in results]
    failed = any(check.status is FAIL for check in checks)
    if options.json:
        answer: dict[str, object] = {"ok": not failed, "checks": [asdict(item) for item in checks]}
        if audit:
            answer["audit"] = audits[0].as_json() if audits else None
        screen.print_json(answer)
    else:
        screen.print_table(
            [
                {
                    "CHECK": check.name,
                    "": Text(check.status.value, style=_STYLES[check.status]),
                    "RESULT": check.detail
                    + (f"; expected: {check.expected}" if check.expected else "")
                    + (f"; {check.remedy}" if check.remedy else ""),
                }
                for check in checks
            ]
        )
        for summary in audits:
            if summary.findings:
                print()
                summary.print()
    return ExitCode.FAILED if failed else ExitCode.OK


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
    detail = (
        f"longshore {version('longshore')}, Python {platform.python_version()},"
        f" {platform.system()} {platform.machine()}"
    )
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
    from longshore.wiring.services import inspect_store, system_clock

    facts = inspect_store(settings)
    yield Check(
        "sqlite",
        OK if facts.engine_trusted else FAIL,
        f"{facts.engine} from {facts.engine_path}"
        + ("" if facts.engine_trusted else "; two writers can damage a file: upgrade apsw"),
    )
    yield _folder_check(facts)
    yield _disk_check(facts)
    yield _clock_check(facts)
    if not facts.exists:
        yield Check("store", OK, "nothing has been stored yet")
        return
    yield _schema_check(facts)
    if facts.damage is not None:
        detail = f"damaged: {facts.damage}; restore {facts.folder} from a backup"
        yield Check("integrity", FAIL, detail)
        return
    yield Check("integrity", OK, f"quick check passed, {formats.size(facts.size_bytes)}")
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
    yield _folder_check(facts)
    yield _disk_check(facts)
    try:
        yield from asyncio.run(diagnose_aws(settings))
    except ConfigurationError as error:
        yield Check("aws library", FAIL, str(error))
        return
    if audit:
        yield asyncio.run(audit_aws(settings, system_clock().elapsed))


def _folder_check(facts: StoreFacts) -> Check:
    kind = f" ({facts.file_system})" if facts.file_system else ""
    if not facts.local:
        detail = f"{facts.folder} is on a network file system{kind}; choose a local disk"
        return Check("data folder", FAIL, detail)
    nearest = _nearest_existing(facts.folder)
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return Check("data folder", FAIL, f"{nearest} is not writable by this user")
    state = "" if facts.folder.exists() else ", does not exist yet: the first run creates it"
    return Check("data folder", OK, f"{facts.folder}{kind}, writable{state}")


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _disk_check(facts: StoreFacts) -> Check:
    free = shutil.disk_usage(_nearest_existing(facts.folder)).free
    status = OK if free >= _MIN_FREE_BYTES else WARN
    return Check("disk", status, f"{formats.size(free)} free")


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


def _worker_checks(settings: Settings, facts: StoreFacts) -> Iterator[Check]:
    from longshore.wiring.services import open_worker_registry

    registry = open_worker_registry(settings)
    live, dead = registry.live_workers(), registry.dead_workers()
    if dead:
        yield Check("workers", WARN, f"{', '.join(dead)} crashed; the next worker cleans up")
    else:
        shown = ", ".join(f"{name} ({', '.join(queues)})" for name, queues in live.items())
        yield Check("workers", OK, shown or "none running")
    if stale := facts.stale_wakeups:
        pipes = formats.plural(stale, "wake-up pipe")
        yield Check("wakeups", WARN, f"{pipes} of dead processes; the next wake-up removes them")
    else:
        yield Check("wakeups", OK, "no stale wake-up pipes")
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
