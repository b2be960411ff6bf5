"""``longshore submit``."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.interfaces.cli.commands.shared import JobFile, RequestId
from longshore.interfaces.cli.options import GlobalOptions, command


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
    request_id: RequestId = None,
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
