"""The body of ``longshore doctor``: looks at everything that has to be right, and changes nothing.

Each check ends in *ok*, *warn* or *fail* with a sentence; only a fail makes the command fail. It
must also answer when the store is damaged, so it does not open it for work. With an audit it also
reads all that is stored, which takes longer.
"""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.text import Text

from longshore.core.inspection import Check, CheckStatus, StoreFacts
from longshore.errors import ConfigurationError
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.operations.agent_doctor import check_agents
from longshore.interfaces.cli.operations.history_audit import AuditSummary, audit_aws, audit_folder
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_table
from longshore.interfaces.cli.services import settings_for
from longshore.settings import Settings

_MIN_FREE_BYTES = 1_000_000_000
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
# No clock that is right shows less than the day this was written.
_EARLIEST_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def doctor(options: GlobalOptions, *, audit: bool = False) -> int:
    """Print what was found."""
    audits: list[AuditSummary] = []  # one at most: only a store that can be read has it
    checks = list(_checks(options, audits.append if audit else None))
    failed = any(check.status is CheckStatus.FAIL for check in checks)
    if options.json:
        answer = {"ok": not failed, "checks": [asdict(check) for check in checks]}
        print_json(
            {**answer, "audit": audits[0].as_json() if audits else None} if audit else answer
        )
    else:
        print_table(
            [Column("CHECK"), Column(""), Column("FOUND", flexible=True)],
            [
                [
                    check.name,
                    Text(check.status.value, style=_STYLES[check.status]),
                    _detail_text(check),
                ]
                for check in checks
            ],
        )
        for one in audits:
            if one.findings:
                print()
                one.print()
    return ExitCode.FAILED if failed else ExitCode.OK


def _detail_text(check: Check) -> str:
    expected = f"; expected: {check.expected}" if check.expected else ""
    return f"{check.detail}{expected}" + (f"; {check.remedy}" if check.remedy else "")


def _checks(
    options: GlobalOptions, on_audit: Callable[[AuditSummary], None] | None
) -> Iterator[Check]:
    yield _version_check()
    try:
        settings = settings_for(options)
    except ConfigurationError as error:
        yield Check("settings", CheckStatus.FAIL, str(error))
        return
    yield Check("settings", CheckStatus.OK, f"tenant {settings.tenant}, backend {settings.backend}")
    yield check_agents(settings)
    if settings.backend == "memory":
        yield Check(
            "store", CheckStatus.WARN, "memory: everything is forgotten when a process ends"
        )
        return
    if settings.backend == "aws":
        yield from _aws_checks(settings, on_audit)
        return
    yield from _store_checks(settings, on_audit)


def _version_check() -> Check:
    detail = (
        f"longshore {version('longshore')}, Python {platform.python_version()},"
        f" {platform.system()} {platform.machine()}"
    )
    if sys.platform == "linux":
        return Check("versions", CheckStatus.OK, detail)
    known = sys.platform == "darwin"
    note = "fine for development; run production on Linux" if known else "not supported"
    return Check("versions", CheckStatus.WARN if known else CheckStatus.FAIL, f"{detail}: {note}")


def _store_checks(
    settings: Settings, on_audit: Callable[[AuditSummary], None] | None
) -> Iterator[Check]:
    from longshore.wiring.services import inspect_store

    facts = inspect_store(settings)
    yield Check(
        "sqlite",
        CheckStatus.OK if facts.engine_trusted else CheckStatus.FAIL,
        f"{facts.engine} from {facts.engine_path}"
        + ("" if facts.engine_trusted else "; it can damage a file with two writers: upgrade apsw"),
    )
    yield _folder_check(facts)
    yield _disk_check(facts)
    yield _clock_check(facts)
    if not facts.exists:
        yield Check("store", CheckStatus.OK, "nothing has been stored yet")
        return
    yield _schema_check(facts)
    yield Check(
        "integrity",
        CheckStatus.FAIL if facts.damage else CheckStatus.OK,
        f"damaged: {facts.damage}; restore {facts.folder} from a backup"
        if facts.damage
        else f"quick check passed, {formats.size(facts.size_bytes)}",
    )
    if facts.damage is None:
        yield from _worker_checks(settings, facts)
        if on_audit is not None:
            yield _audit_check(facts, on_audit)


def _aws_checks(
    settings: Settings, on_audit: Callable[[AuditSummary], None] | None
) -> Iterator[Check]:
    from longshore.wiring.deploy import diagnose_aws
    from longshore.wiring.services import inspect_store, system_clock

    facts = inspect_store(settings)  # of the folder in which attempts work
    yield _folder_check(facts)
    yield _disk_check(facts)
    try:
        yield from asyncio.run(diagnose_aws(settings))
    except ConfigurationError as error:
        yield Check("aws library", CheckStatus.FAIL, str(error))
        return
    if on_audit is not None:
        found = asyncio.run(audit_aws(settings, system_clock().elapsed))
        on_audit(found)
        yield Check(
            "history", CheckStatus.OK if found.passed else CheckStatus.FAIL, found.summary_line()
        )


def _audit_check(facts: StoreFacts, on_audit: Callable[[AuditSummary], None]) -> Check:
    from longshore.wiring.services import system_clock

    if facts.schema != facts.supported_schema:
        detail = f"not audited: only schema {facts.supported_schema} can be, see above"
        return Check("history", CheckStatus.WARN, detail)
    found = audit_folder(facts.folder, system_clock().elapsed)
    on_audit(found)
    return Check(
        "history", CheckStatus.OK if found.passed else CheckStatus.FAIL, found.summary_line()
    )


def _folder_check(facts: StoreFacts) -> Check:
    kind = f" ({facts.file_system})" if facts.file_system else ""
    if not facts.local:
        detail = f"{facts.folder} is on a network file system{kind}; choose a local disk"
        return Check("data folder", CheckStatus.FAIL, detail)
    nearest = _nearest_existing(facts.folder)
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return Check("data folder", CheckStatus.FAIL, f"{nearest} cannot be written by this user")
    state = "" if facts.folder.exists() else ", not there yet: the first run creates it"
    return Check("data folder", CheckStatus.OK, f"{facts.folder}{kind}, writable{state}")


def _nearest_existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _disk_check(facts: StoreFacts) -> Check:
    free = shutil.disk_usage(_nearest_existing(facts.folder)).free
    mark = CheckStatus.OK if free >= _MIN_FREE_BYTES else CheckStatus.WARN
    return Check("disk", mark, f"{formats.size(free)} free")


def _clock_check(facts: StoreFacts) -> Check:
    now = facts.inspected_at
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < _EARLIEST_TIME:
        return Check("clock", CheckStatus.FAIL, f"{shown} cannot be right: set the machine's clock")
    if facts.last_event_at is not None and facts.last_event_at > now:
        ahead = formats.duration_text(facts.last_event_at - now)
        detail = f"{shown}, but something was recorded {ahead} later: was the clock set back?"
        return Check("clock", CheckStatus.WARN, detail)
    return Check("clock", CheckStatus.OK, shown)


def _schema_check(facts: StoreFacts) -> Check:
    if facts.schema > facts.supported_schema:
        detail = (
            f"{facts.schema}, newer than this version knows ({facts.supported_schema}): upgrade"
        )
        return Check("schema", CheckStatus.FAIL, detail)
    if facts.schema < facts.supported_schema:
        detail = f"{facts.schema}; the next command brings it to {facts.supported_schema}"
        return Check("schema", CheckStatus.WARN, detail)
    return Check("schema", CheckStatus.OK, str(facts.schema))


def _worker_checks(settings: Settings, facts: StoreFacts) -> Iterator[Check]:
    from longshore.wiring.services import open_worker_registry

    presence = open_worker_registry(settings)
    present, gone = presence.live_workers(), presence.dead_workers()
    if gone:
        detail = f"{', '.join(gone)} ended without a word; the next worker clears up after it"
        yield Check("workers", CheckStatus.WARN, detail)
    else:
        shown = ", ".join(f"{name} ({', '.join(serves)})" for name, serves in present.items())
        yield Check("workers", CheckStatus.OK, shown or "none at work")
    stale = facts.stale_wakeups
    detail = (
        f"{formats.plural(stale, 'wake-up file')} of dead processes; the next commit removes them"
    )
    yield Check(
        "wakeups",
        CheckStatus.WARN if stale else CheckStatus.OK,
        detail if stale else "none is stale",
    )
    for name, depth in facts.queues:
        detail = f"{depth.ready} ready, {depth.hidden} hidden, {depth.dead_letters} dead"
        if depth.dead_letters:
            yield Check(f"queue {name}", CheckStatus.WARN, f"{detail}: see `longshore dead list`")
        elif depth.ready and not any(name in serves for serves in present.values()):
            remedy = f"`longshore worker --queue {name}`"
            yield Check(
                f"queue {name}", CheckStatus.WARN, f"{detail}: no worker serves it; {remedy}"
            )
        else:
            yield Check(f"queue {name}", CheckStatus.OK, detail)
    if not facts.queues:
        yield Check("queues", CheckStatus.OK, "all empty")
