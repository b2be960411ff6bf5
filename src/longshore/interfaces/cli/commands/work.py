"""The commands that get work done: ``run``, ``submit``, ``worker``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated

import typer

from longshore.interfaces.cli.commands.shared import (
    App,
    Concurrency,
    JobFile,
    LogFile,
    LogFormat,
    Processes,
    Queues,
    RecycleAt,
    SupervisorFd,
)
from longshore.interfaces.cli.options import GlobalOptions, command, parse_duration_option

_RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="TEXT",
        help="The same id gives the same job, however often.",
        show_default=False,
    ),
]


@command(
    ("longshore run -- sh -c 'echo out; echo err >&2; exit 3'", "shows both lines, exits with 3"),
    ("longshore run --timeout 10m --attempts 3 -- ./import.sh", "tried up to three times"),
    ("longshore run --request-id nightly-0131 -- ./report.sh", "never twice, also after a crash"),
    interspersed=False,
)
def run(
    options: GlobalOptions,
    argv: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="What to run.", show_default=False),
    ],
    *,
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            parser=parse_duration_option,
            help="Time it may take, like 90s or 1h. [default: no limit]",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="TEXT", help="What to call the job. [default: the command]"),
    ] = None,
    attempts: Annotated[
        int,
        typer.Option(
            "--attempts", metavar="N", min=1, max=100, help="How often to try if it fails."
        ),
    ] = 1,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue",
            metavar="NAME",
            help="A queue that other workers serve too. [default: one for this run alone]",
        ),
    ] = None,
    request_id: _RequestId = None,
) -> int:
    """Run one command and exit as it does, with everything recorded.

    Its output appears as it comes, and stays: see `longshore jobs` and `longshore logs`. It has no
    stdin, and of the environment it gets what the setting worker.pass_environment names. Ctrl-C
    cancels it; a second one kills it at once.

    Exits with the command's own code; with 128 + n if signal n ended it, with 124 if its time was
    up, with 127 if there is no such command.
    """
    from longshore.interfaces.cli.operations import run

    wanted = run.RunRequest(
        argv=tuple(argv),
        timeout=timeout,
        name=name,
        attempts=attempts,
        queue=queue,
        request_id=request_id,
    )
    return asyncio.run(run.run(options, wanted))


@command(
    ("longshore submit job.yaml", "accepted; workers will do it"),
    ("longshore submit job.yaml --wait", "work on it here until it has ended"),
    ("generate-job | longshore submit - -o json", "from another program"),
    output=True,
    remote=True,
)
def submit(
    options: GlobalOptions,
    file: JobFile,
    *,
    request_id: _RequestId = None,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="Work on it here until it has ended; behind a server, wait.",
            show_default=False,
        ),
    ] = False,
) -> int:
    """Submit a job from a file.

    \b
      name: greeting
      tasks:
        - taskId: hello
          name: command
          input: {argv: [echo, hello]}
        - taskId: world
          name: command
          dependsOn: [hello]
          input: {argv: [sh, -c, "sleep 1; echo world"]}

    The file has a list of tasks, each with taskId, name (of a definition: command, python, or one
    of your own), input and dependsOn; and if you like a name, and a list of definitions, which
    are stored first. Everything that is wrong is listed at once, and then nothing is stored.

    With --wait it exits with 1 if the job failed.
    """
    from longshore.interfaces.cli.operations import submit

    return asyncio.run(submit.submit(options, file, request_id=request_id, wait=wait))


@command(
    ("longshore worker", "until Ctrl-C"),
    ("longshore worker --queue mail --queue reports --concurrency 8", "two queues, eight at once"),
    ("longshore worker --burst", "until nothing is left to do"),
    ("longshore worker --app shop.tasks", "knows the functions of a module"),
    ("longshore worker --processes 3 --recycle-at 03:30", "three, fresh ones each night"),
)
def worker(
    options: GlobalOptions,
    *,
    queue: Queues = None,
    concurrency: Concurrency = None,
    app: App = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="Stop when nothing is left to do.", show_default=False)
    ] = False,
    processes: Processes = None,
    recycle_at: RecycleAt = None,
    log_file: LogFile = None,
    log_format: LogFormat = None,
    supervisor_fd: SupervisorFd = None,
) -> int:
    """Work on tasks until stopped.

    Ctrl-C or SIGTERM: no new work, and what runs may finish within the setting worker.drain_grace;
    what is left then is given back for another worker. A second signal gives it back at once.

    With --processes a supervisor keeps so many workers running: one that ends is started again;
    one that has grown too large is replaced, and all of them on SIGHUP. The old one finishes what
    it has while the new one begins. It exits with 1 if workers keep ending soon after they began.
    """
    from longshore.interfaces.cli.operations import worker

    asked = worker.WorkerOptions(
        queues=tuple(queue) if queue else None,
        concurrency=concurrency,
        app=tuple(app) if app else None,
        burst=burst,
        processes=processes,
        recycle_at=recycle_at,
        log_file=log_file,
        log_format=log_format,
        supervisor_fd=supervisor_fd,
    )
    return worker.run_worker(options, asked)
