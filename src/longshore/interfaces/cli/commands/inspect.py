"""The commands that look at things: ``jobs``, ``job``, ``tasks``, ``events``, ``logs``, ``trace``.

Here are their command lines alone; what they do is imported when they run, so that asking for help
costs next to nothing.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.core.tasks.states import JobState, TaskState
from longshore.interfaces.cli.commands.shared import Cursor, Id, Limit
from longshore.interfaces.cli.options import GlobalOptions, command

_Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="N", min=1, help="Only this attempt.", show_default=False),
]
_Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Go on until it has ended.", show_default=False)
]


@command(
    ("longshore jobs", "the newest ones"),
    ("longshore jobs --state failed", "only those that failed"),
    ("longshore jobs -o json | jq '.jobs[].jobId'", "for a script"),
    output=True,
    remote=True,
)
def jobs(
    options: GlobalOptions,
    *,
    state: Annotated[
        JobState | None, typer.Option("--state", help="Only jobs in this state.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List jobs, the newest first."""
    from longshore.interfaces.cli.operations import inspect

    asyncio.run(inspect.jobs(options, state, limit, cursor))


@command(
    ("longshore job job-k3x", "the job whose id begins so"),
    ("longshore job job-k3x -o json", "the same for a script"),
    output=True,
    remote=True,
)
def job(options: GlobalOptions, job_id: Id) -> None:
    """Show one job: how far it is, and each task with its state, attempts, times and error."""
    from longshore.interfaces.cli.operations import inspect

    asyncio.run(inspect.job(options, job_id))


@command(
    ("longshore tasks --state processing", "what runs now"),
    ("longshore tasks --job job-k3x", "the tasks of one job"),
    output=True,
    remote=True,
)
def tasks(
    options: GlobalOptions,
    *,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Only tasks of this job.")
    ] = None,
    state: Annotated[
        TaskState | None, typer.Option("--state", help="Only tasks in this state.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List tasks: the newest first, or those of one job in order."""
    from longshore.interfaces.cli.operations import inspect

    asyncio.run(inspect.tasks(options, job, state, limit, cursor))


@command(
    ("longshore events job-k3x", "what happened to the job itself"),
    ("longshore events job-k3x --all -f", "and to its tasks, as it happens"),
    ("longshore events job-k3x_fetch -o json", "every event of a task, whole"),
    output=True,
    remote=True,
)
def events(
    options: GlobalOptions,
    entity: Id,
    *,
    include_tasks: Annotated[
        bool,
        typer.Option("--all", help="For a job: the events of its tasks too.", show_default=False),
    ] = False,
    follow: _Follow = False,
) -> None:
    """Show what happened to a job or task, event by event.

    With -o json the answer is one array of events as they travel; with -f as well, one event a
    line.
    """
    from longshore.interfaces.cli.operations import events

    asyncio.run(events.events(options, entity, include_tasks=include_tasks, follow=follow))


@command(
    ("longshore logs job-k3x", "what all tasks of a job printed"),
    ("longshore logs job-k3x_fetch -f", "one task, until it has ended"),
    ("longshore logs job-k3x_fetch --attempt 1", "only its first attempt"),
    output=True,
    remote=True,
)
def logs(
    options: GlobalOptions,
    entity: Id,
    *,
    follow: _Follow = False,
    attempt: _Attempt = None,
) -> None:
    """Show what a job or task printed.

    A task's stdout and stderr come out where they went in. The lines of a job have the task's name
    before them, with | for stdout and ! for stderr, in the order in which they were printed.
    """
    from longshore.interfaces.cli.operations import logs

    asyncio.run(logs.logs(options, entity, follow=follow, attempt=attempt))


@command(
    ("longshore trace job-k3x", "of a job with one task that is run by an agent"),
    ("longshore trace job-k3x_review --attempt 1", "of the first attempt of a task"),
    ("longshore trace job-k3x -o json", "all that is kept, for a script"),
    output=True,
    remote=True,
)
def trace(options: GlobalOptions, entity: Id, *, attempt: _Attempt = None) -> None:
    """Show what an agent did: its steps, turns and tools, what they took and cost.

    It is the trace that an attempt leaves when it ends, of the last one if none is named; while it
    runs, `longshore logs -f` shows what it does. Times count from the beginning of the step.
    """
    from longshore.interfaces.cli.operations import trace

    asyncio.run(trace.trace(options, entity, attempt=attempt))
