"""The commands for budgets: ``budget show``, ``budget add``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.interfaces.cli.options import GlobalOptions, command

_Id = Annotated[
    str,
    typer.Argument(metavar="ID", help="Of a job or a task, or 'today'.", show_default=False),
]


@command(
    ("longshore budget show today", "what agents may spend today, and have spent"),
    ("longshore budget show job-4f2", "of one job"),
    output=True,
    remote=True,
)
def show(options: GlobalOptions, id_: _Id) -> None:
    """Show what agents may spend on a job, on a task or today, and have spent.

    A task's budget is in its definition, a job's in the job file, a day's in the settings. Days
    begin at midnight UTC.
    """
    from longshore.interfaces.cli.operations import budgets

    asyncio.run(budgets.show(options, id_))


@command(
    ("longshore budget add job-4f2_review --usd 5", "a task that is parked goes on where it was"),
    ("longshore budget add today --tokens 1000000", "for all of today's tasks"),
    output=True,
    remote=True,
)
def add(
    options: GlobalOptions,
    id_: _Id,
    *,
    usd: Annotated[
        float | None,
        typer.Option("--usd", metavar="N", min=0.000001, help="Dollars.", show_default=False),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", metavar="N", min=1, help="Tokens.", show_default=False),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", metavar="N", min=0.001, help="Minutes.", show_default=False),
    ] = None,
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id",
            metavar="ID",
            help="Adds once, however often it is sent.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Allow agents to spend more on a job, on a task or today.

    Tasks that are parked for want of it go on where they were, in the same conversation.
    """
    from longshore.core.budgets import Budget
    from longshore.interfaces.cli.operations import budgets

    more = Budget(usd=usd, tokens=tokens, minutes=minutes)
    asyncio.run(budgets.add(options, id_, more, request_id=request_id))
