"""The commands about dead letters: ``dead list``, ``dead show``, ``dead replay``, ``dead discard``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.core.tasks.error_categories import ErrorCategory
from longshore.interfaces.cli.commands.shared import Cursor, Limit
from longshore.interfaces.cli.options import GlobalOptions, command

_Queue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only those of this queue.")
]
_Definition = Annotated[
    str | None,
    typer.Option("--definition", metavar="NAME", help="Only tasks of this definition."),
]
_Category = Annotated[
    ErrorCategory | None,
    typer.Option(
        "--category",
        metavar="WORD",
        help="Only tasks that failed in this way, such as network or exit-code.",
    ),
]
_Job = Annotated[str | None, typer.Option("--job", metavar="ID", help="Only tasks of this job.")]
_Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help="Only those of the last 2h, or from 2026-01-31 or 2026-01-31T12:30 on.",
    ),
]


@command(
    ("longshore dead list", "what failed for good, the latest first"),
    ("longshore dead list --category network --since 2h", "what the network has done to us"),
    ("longshore dead list --queue mail -o json | jq .count", "for a monitor"),
    output=True,
    remote=True,
)
def list_(
    options: GlobalOptions,
    *,
    queue: _Queue = None,
    definition: _Definition = None,
    category: _Category = None,
    job: _Job = None,
    since: _Since = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List dead letters, the latest first: what nobody will look at again by itself.

    A task is here when it failed and has no attempt left, or none could help. It stays until it is
    replayed. A message is here when it was received too often and leads to no task; it stays until
    it is discarded.
    """
    from longshore.interfaces.cli.operations import dead_letters

    wish = dead_letters.DeadLetterOptions(queue, definition, category, job, since)
    asyncio.run(dead_letters.list_(options, wish, limit, cursor))


@command(
    ("longshore dead show job-k3x_fetch", "a task: each attempt, and the last it printed"),
    ("longshore dead show msg-17", "a message: why nobody could act on it"),
    output=True,
    remote=True,
)
def show(
    options: GlobalOptions,
    letter: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="A task or its job, by as much of the id as is enough; or a message.",
            show_default=False,
        ),
    ],
) -> None:
    """Show one dead letter: why it died, each attempt with its error, the last lines it printed."""
    from longshore.interfaces.cli.operations import dead_letters

    asyncio.run(dead_letters.show(options, letter))


@command(
    ("longshore dead replay job-k3x_fetch", "one task"),
    ("longshore dead replay --category network --since 1h", "says how many, and asks"),
    ("longshore dead replay --all --yes", "everything, without being asked"),
    output=True,
    remote=True,
)
def replay(
    options: GlobalOptions,
    letters: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="Tasks, or jobs for all of theirs; as much of the id as is enough.",
            show_default=False,
        ),
    ] = None,
    *,
    queue: _Queue = None,
    definition: _Definition = None,
    category: _Category = None,
    job: _Job = None,
    since: _Since = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All that there is.", show_default=False)
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)
    ] = False,
) -> int:
    """Give tasks that failed another round, with fresh attempts.

    What completed is not run again, and what waits behind a task goes on when it completes. Of two
    who replay a task at once, one does; a task that has moved on is left as it is.

    Before it replays more than was named by id, it says how many, and asks. Where there is no
    terminal to ask on, --yes is needed.

    Exits with 1 if the answer was no, and with 4 if a task that was named has moved on.
    """
    from longshore.interfaces.cli.operations import dead_letter_replay, dead_letters

    wish = dead_letters.DeadLetterOptions(queue, definition, category, job, since)
    return dead_letter_replay.replay(options, letters or [], wish, everything=everything, yes=yes)


@command(
    ("longshore dead discard msg-17", "forget a message that leads nowhere"),
    output=True,
    remote=True,
)
def discard(
    options: GlobalOptions,
    letters: Annotated[
        list[str],
        typer.Argument(metavar="ID", help="Messages, as the list names them.", show_default=False),
    ],
) -> None:
    """Forget messages that lead to no task.

    An event of the queue keeps the reason and how the message began. A task is never forgotten: it
    is history, and stays in the list until it is replayed.
    """
    from longshore.interfaces.cli.operations import dead_letter_replay

    asyncio.run(dead_letter_replay.discard(options, letters))
