"""The commands about events that were not delivered: ``undelivered list``, ``undelivered replay``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.interfaces.cli.commands.shared import Cursor, Limit
from longshore.interfaces.cli.options import GlobalOptions, command


@command(("longshore aws undelivered list", "what the bus or a reader gave up on"), output=True)
def list_(options: GlobalOptions, *, limit: Limit = 50, cursor: Cursor = None) -> None:
    """List events on AWS that did not get to who should hear of them, the oldest first.

    The bus gives up after some tries, and a queue after some receives. What they gave up on is kept
    in the bucket until it is replayed.
    """
    from longshore.interfaces.cli.operations import undelivered

    asyncio.run(undelivered.list_(options, limit=limit, cursor=cursor))


@command(
    ("longshore aws undelivered replay 000001894017600000-17", "one of them"),
    ("longshore aws undelivered replay --all", "when the reader is mended"),
    output=True,
)
def replay(
    options: GlobalOptions,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID...", help="As `undelivered list` shows.", show_default=False),
    ] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that are kept.")] = False,
) -> int:
    """Tell the bus once more of events that were not delivered.

    Whoever listens hears of them again, also who has heard before: that harms nobody. One that the
    bus takes is forgotten here; the others stay, and the command exits with 1.
    """
    from longshore.interfaces.cli.operations import undelivered

    return asyncio.run(undelivered.replay(options, ids or [], everything=everything))
