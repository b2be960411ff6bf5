"""The commands for queues: ``queues list``, ``queues pause``, ``queues resume``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.interfaces.cli.options import GlobalOptions, command

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the queue.", show_default=False)]


@command(("longshore queues list", "which are paused, by whom and why"), output=True, remote=True)
def list_(options: GlobalOptions) -> None:
    """List the queues that are paused, and those that are held.

    A queue is held for a while when the model's API asks to be left alone; that ends by itself.
    """
    from longshore.interfaces.cli.operations import queues

    asyncio.run(queues.list_(options))


@command(
    ("longshore queues pause mail --reason 'the server is down'", "what runs goes on"),
    output=True,
    remote=True,
)
def pause(
    options: GlobalOptions,
    name: _Name,
    *,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Shown to others.", show_default=False),
    ] = None,
) -> None:
    """Let no task of a queue begin, at any worker; what runs goes on.

    One that is paused already stays as it is, and its own reason is shown.
    """
    from longshore.interfaces.cli.operations import queues

    asyncio.run(queues.pause(options, name, reason=reason))


@command(
    ("longshore queues resume mail", "workers take its tasks at once"), output=True, remote=True
)
def resume(options: GlobalOptions, name: _Name) -> None:
    """Let the tasks of a queue begin again.

    Ends a hold, too. Exits with 4 if it was neither paused nor held.
    """
    from longshore.interfaces.cli.operations import queues

    asyncio.run(queues.resume(options, name))
