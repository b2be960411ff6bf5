"""The commands that want something of a job or task: ``cancel``, ``resume``, ``why`` and the like.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.interfaces.cli.commands.shared import Id, JobFile
from longshore.interfaces.cli.options import GlobalOptions, command

_Task = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A task: its id, or as much of it as is enough.", show_default=False
    ),
]


@command(
    ("longshore why job-k3x_fetch", "what it waits for, and what would move it on"),
    ("longshore why k3x", "of a whole job"),
    output=True,
    remote=True,
)
def why(options: GlobalOptions, id_: Id) -> None:
    """Say why a job or task does not run, down to the root of it.

    Parents that have not completed, a failure before it, a delay or a backoff, a queue that is
    paused or that nobody serves, a review, a worker that has fallen silent: each with since when,
    until when, and the command that would move it on.
    """
    from longshore.interfaces.cli.operations import operate

    asyncio.run(operate.why(options, id_))


@command(
    ("longshore health", "of all that runs; history and people are told, as by the clock"),
    ("longshore health k3x_fetch", "of one task; nobody else is told"),
    output=True,
    remote=True,
)
def health(
    options: GlobalOptions,
    task: Annotated[
        str | None,
        typer.Argument(
            metavar="ID", help="A task: its id, or as much of it as is enough.", show_default=False
        ),
    ] = None,
) -> int:
    """Check whether tasks that run are well: not silent, not longer at it than they may be.

    Exits with 1 if one is critical or over its time.
    """
    from longshore.interfaces.cli.operations import health

    return asyncio.run(health.health(options, task))


@command(
    ("longshore cancel k3x", "a whole job"),
    ("longshore cancel k3x_fetch --reason 'wrong day'", "one task"),
    output=True,
    remote=True,
)
def cancel(
    options: GlobalOptions,
    id_: Id,
    *,
    reason: Annotated[
        str | None,
        typer.Option("--reason", metavar="TEXT", help="Kept in its history.", show_default=False),
    ] = None,
) -> None:
    """End a job with all that runs or would run, or one task.

    What is done stays done. A task that runs is killed by its worker; an outcome that is faster
    stands. What was cancelled can be resumed.

    Exits with 4 if it had ended already.
    """
    from longshore.interfaces.cli.operations import operate

    asyncio.run(operate.cancel(options, id_, reason=reason))


@command(
    ("longshore resume k3x", "all that failed or was cancelled"),
    ("longshore resume k3x_fetch", "one task"),
    output=True,
    remote=True,
)
def resume(options: GlobalOptions, id_: Id) -> None:
    """Run what failed or was cancelled again; what completed is not run again.

    The tasks begin a new round, with fresh attempts; what waits behind them goes on after them.

    Exits with 4 if there is nothing to resume.
    """
    from longshore.interfaces.cli.operations import operate

    asyncio.run(operate.resume(options, id_))


@command(("longshore approve k3x_draft", "what depends on it goes on"), output=True, remote=True)
def approve(options: GlobalOptions, task: _Task) -> None:
    """Say that the result of a task in review is right.

    Exits with 4 if the task is not in review.
    """
    from longshore.interfaces.cli.operations import operate

    asyncio.run(operate.approve(options, task))


@command(
    ("longshore revise k3x_draft 'half as long, please'", "a new attempt gets it"),
    output=True,
    remote=True,
)
def revise(
    options: GlobalOptions,
    task: _Task,
    feedback: Annotated[
        str,
        typer.Argument(metavar="FEEDBACK", help="What is to be better.", show_default=False),
    ],
) -> None:
    """Send the result of a task in review back: a new attempt gets it, with the feedback.

    Exits with 4 if the task is not in review, or was sent back too often.
    """
    from longshore.interfaces.cli.operations import operate

    asyncio.run(operate.revise(options, task, feedback))


@command(
    ("longshore add k3x more.yaml", "a file with a list of tasks"),
    ("longshore add k3x more.yaml --request-id part-2", "never twice"),
    output=True,
    remote=True,
)
def add(
    options: GlobalOptions,
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="Its id, or as much of it as is enough.", show_default=False
        ),
    ],
    file: JobFile,
    *,
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id",
            metavar="TEXT",
            help="The same id adds the tasks once, however often.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Add tasks to a job that is under way.

    They may depend on each other and on tasks that the job has, also on those that are done, whose
    results they get.

    Exits with 4 if the job has completed or was cancelled.
    """
    from longshore.interfaces.cli.operations import operate

    asyncio.run(operate.add(options, job, file, request_id=request_id))
