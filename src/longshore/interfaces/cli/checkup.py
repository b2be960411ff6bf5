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

from longshore.errors import ConfigurationError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.agent_checkup import agents
from longshore.interfaces.cli.auditing import Audit, audited, audited_on_aws
from longshore.interfaces.cli.exits import ExitCode
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table
from longshore.interfaces.cli.session import settings_for
from longshore.ports.inspection import Check, Mark, StoreFacts
from longshore.settings import Settings

_LEAST_FREE_BYTES = 1_000_000_000
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}
# No clock that is right shows less than the day this was written.
_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)


def doctor(here: Here, *, audit: bool = False) -> int:
    """Print what was found."""
    audits: list[Audit] = []  # one at most: only a store that can be read has it
    checks = list(_checks(here, audits.append if audit else None))
    failed = any(check.mark is Mark.FAIL for check in checks)
    if here.json:
        answer = {"ok": not failed, "checks": [asdict(check) for check in checks]}
        print_json(
            {**answer, "audit": audits[0].as_json() if audits else None} if audit else answer
        )
    else:
        print_table(
            [Column("CHECK"), Column(""), Column("FOUND", flexible=True)],
            [
                [check.name, Text(check.mark.value, style=_STYLES[check.mark]), _sentence(check)]
                for check in checks
            ],
        )
        for one in audits:
            if one.findings:
                print()
                one.print()
    return ExitCode.FAILED if failed else ExitCode.OK


def _sentence(check: Check) -> str:
    expected = f"; expected: {check.expected}" if check.expected else ""
    return f"{check.detail}{expected}" + (f"; {check.remedy}" if check.remedy else "")


def _checks(here: Here, keep: Callable[[Audit], None] | None) -> Iterator[Check]:
    yield _versions()
    try:
        settings = settings_for(here)
    except ConfigurationError as error:
        yield Check("settings", Mark.FAIL, str(error))
        return
    yield Check("settings", Mark.OK, f"tenant {settings.tenant}, backend {settings.backend}")
    yield agents(settings)
    if settings.backend == "memory":
        yield Check("store", Mark.WARN, "memory: everything is forgotten when a process ends")
        return
    if settings.backend == "aws":
        yield from _of_aws(settings, keep)
        return
    yield from _of_store(settings, keep)


def _versions() -> Check:
    detail = (
        f"longshore {version('longshore')}, Python {platform.python_version()},"
        f" {platform.system()} {platform.machine()}"
    )
    if sys.platform == "linux":
        return Check("versions", Mark.OK, detail)
    known = sys.platform == "darwin"
    note = "fine for development; run production on Linux" if known else "not supported"
    return Check("versions", Mark.WARN if known else Mark.FAIL, f"{detail}: {note}")


def _of_store(settings: Settings, keep: Callable[[Audit], None] | None) -> Iterator[Check]:
    from longshore.wiring import examine

    facts = examine(settings)
    yield Check(
        "sqlite",
        Mark.OK if facts.engine_trusted else Mark.FAIL,
        f"{facts.engine} from {facts.engine_path}"
        + ("" if facts.engine_trusted else "; it can damage a file with two writers: upgrade apsw"),
    )
    yield _folder(facts)
    yield _disk(facts)
    yield _clock(facts)
    if not facts.exists:
        yield Check("store", Mark.OK, "nothing has been stored yet")
        return
    yield _schema(facts)
    yield Check(
        "integrity",
        Mark.FAIL if facts.damage else Mark.OK,
        f"damaged: {facts.damage}; restore {facts.folder} from a backup"
        if facts.damage
        else f"quick check passed, {words.size(facts.size_bytes)}",
    )
    if facts.damage is None:
        yield from _at_work(settings, facts)
        if keep is not None:
            yield _history(facts, keep)


def _of_aws(settings: Settings, keep: Callable[[Audit], None] | None) -> Iterator[Check]:
    from longshore.wiring import examine, system_clock
    from longshore.wiring.examining import examine_aws

    facts = examine(settings)  # of the folder in which attempts work
    yield _folder(facts)
    yield _disk(facts)
    try:
        yield from asyncio.run(examine_aws(settings))
    except ConfigurationError as error:
        yield Check("aws library", Mark.FAIL, str(error))
        return
    if keep is not None:
        found = asyncio.run(audited_on_aws(settings, system_clock()))
        keep(found)
        yield Check("history", Mark.OK if found.sound else Mark.FAIL, found.sentence())


def _history(facts: StoreFacts, keep: Callable[[Audit], None]) -> Check:
    from longshore.wiring import system_clock

    if facts.schema != facts.known_schema:
        detail = f"not audited: only schema {facts.known_schema} can be, see above"
        return Check("history", Mark.WARN, detail)
    found = audited(facts.folder, system_clock())
    keep(found)
    return Check("history", Mark.OK if found.sound else Mark.FAIL, found.sentence())


def _folder(facts: StoreFacts) -> Check:
    kind = f" ({facts.file_system})" if facts.file_system else ""
    if not facts.local:
        detail = f"{facts.folder} is on a network file system{kind}; choose a local disk"
        return Check("data folder", Mark.FAIL, detail)
    nearest = _nearest(facts.folder)
    if not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
        return Check("data folder", Mark.FAIL, f"{nearest} cannot be written by this user")
    state = "" if facts.folder.exists() else ", not there yet: the first run creates it"
    return Check("data folder", Mark.OK, f"{facts.folder}{kind}, writable{state}")


def _nearest(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _disk(facts: StoreFacts) -> Check:
    free = shutil.disk_usage(_nearest(facts.folder)).free
    mark = Mark.OK if free >= _LEAST_FREE_BYTES else Mark.WARN
    return Check("disk", mark, f"{words.size(free)} free")


def _clock(facts: StoreFacts) -> Check:
    now = facts.at
    shown = f"{now:%Y-%m-%d %H:%M:%S} UTC"
    if now < _EARLIEST:
        return Check("clock", Mark.FAIL, f"{shown} cannot be right: set the machine's clock")
    if facts.newest_at is not None and facts.newest_at > now:
        ahead = words.took(facts.newest_at - now)
        detail = f"{shown}, but something was recorded {ahead} later: was the clock set back?"
        return Check("clock", Mark.WARN, detail)
    return Check("clock", Mark.OK, shown)


def _schema(facts: StoreFacts) -> Check:
    if facts.schema > facts.known_schema:
        detail = f"{facts.schema}, newer than this version knows ({facts.known_schema}): upgrade"
        return Check("schema", Mark.FAIL, detail)
    if facts.schema < facts.known_schema:
        detail = f"{facts.schema}; the next command brings it to {facts.known_schema}"
        return Check("schema", Mark.WARN, detail)
    return Check("schema", Mark.OK, str(facts.schema))


def _at_work(settings: Settings, facts: StoreFacts) -> Iterator[Check]:
    from longshore.wiring import presence_in

    presence = presence_in(settings)
    present, gone = presence.present(), presence.absent()
    if gone:
        detail = f"{', '.join(gone)} ended without a word; the next worker clears up after it"
        yield Check("workers", Mark.WARN, detail)
    else:
        shown = ", ".join(f"{name} ({', '.join(serves)})" for name, serves in present.items())
        yield Check("workers", Mark.OK, shown or "none at work")
    stale = facts.stale_bells
    detail = f"{words.number_of(stale, 'bell')} of dead processes; the next commit removes them"
    yield Check("bells", Mark.WARN if stale else Mark.OK, detail if stale else "none is stale")
    for name, depth in facts.queues:
        detail = f"{depth.ready} ready, {depth.hidden} hidden, {depth.dead} dead"
        if depth.dead:
            yield Check(f"queue {name}", Mark.WARN, f"{detail}: see `longshore dead list`")
        elif depth.ready and not any(name in serves for serves in present.values()):
            remedy = f"`longshore worker --queue {name}`"
            yield Check(f"queue {name}", Mark.WARN, f"{detail}: no worker serves it; {remedy}")
        else:
            yield Check(f"queue {name}", Mark.OK, detail)
    if not facts.queues:
        yield Check("queues", Mark.OK, "all empty")
