"""The bodies of ``undelivered list`` and ``undelivered replay``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from longshore.core.undelivered import UndeliveredEvent
from longshore.errors import LongshoreError, UsageError
from longshore.interfaces.cli.exit_codes import ExitCode, print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_table
from longshore.interfaces.cli.services import open_command_services, settings_for
from longshore.services.event_delivery import UndeliveredEvents

_PAGE = 100


async def list_(options: GlobalOptions, *, limit: int, cursor: str | None) -> None:
    """List what is kept, the oldest first."""
    async with _open_undelivered(options) as events:
        found = await events.list(limit=limit + 1, after=cursor or "")
        more = found[limit - 1].id if len(found) > limit else None
        found = found[:limit]
        if options.json:
            print_json({"undelivered": [_document(letter) for letter in found], "cursor": more})
            return
        if not found:
            print("every event was delivered")
            return
        columns = [Column("ID"), Column("EVENT"), Column("OF"), Column("FOR"), Column("WHY")]
        print_table(columns, [_cells(letter) for letter in found])
        if more:
            print_stderr(f"longshore: there are more: --cursor {more}")


async def replay(options: GlobalOptions, ids: Sequence[str], *, everything: bool) -> int:
    """Tell the bus once more; the exit code."""
    if bool(ids) == everything:
        message = "name the events to tell again, or say --all"
        raise UsageError(message)
    told, failed = 0, 0
    async with _open_undelivered(options) as events:
        async for letter_id in _all_ids(events) if everything else _iterate(ids):
            try:
                told += await events.replay(letter_id)
            except LongshoreError as error:
                if not everything:
                    raise
                failed += 1
                print_stderr(f"longshore: {letter_id} stays: {error}")
    if options.json:
        print_json({"replayed": told, "failed": failed})
    else:
        print(f"{formats.plural(told, 'event')} told again")
    return int(ExitCode.FAILED if failed else ExitCode.OK)


async def _iterate(ids: Sequence[str]) -> AsyncIterator[str]:
    for letter_id in ids:
        yield letter_id


async def _all_ids(events: UndeliveredEvents) -> AsyncIterator[str]:
    """Also behind those that stay."""
    after = ""
    while page := await events.list(limit=_PAGE, after=after):
        for letter in page:
            yield letter.id
        after = page[-1].id


@contextlib.asynccontextmanager
async def _open_undelivered(options: GlobalOptions) -> AsyncIterator[UndeliveredEvents]:
    settings = settings_for(options)
    if settings.backend != "aws":
        message = "only on AWS is an event ever undelivered; LONGSHORE_BACKEND=aws asks there"
        raise UsageError(message)
    from longshore.wiring.lambdas import undelivered_events

    async with open_command_services(settings) as session:
        yield undelivered_events(session)


def _document(letter: UndeliveredEvent) -> dict[str, str]:
    facts = letter.facts()
    return {
        "id": letter.id,
        "eventType": facts.event_type,
        "detailType": facts.detail_type,
        "entity": facts.entity,
        "at": facts.at.isoformat(),
        "source": letter.source,
        "reason": letter.reason,
        "body": letter.body,
    }


def _cells(letter: UndeliveredEvent) -> list[str]:
    facts = letter.facts()
    return [letter.id, facts.event_type, facts.entity, letter.source, letter.reason]
