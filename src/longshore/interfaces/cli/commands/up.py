"""The command that runs everything: ``up``.

Here is its command line alone; what it does is imported when it runs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from longshore.interfaces.cli.commands.shared import App, Concurrency, Queues
from longshore.interfaces.cli.options import GlobalOptions, command


@command(
    ("longshore up", "API, workers, repairs; until Ctrl-C"),
    ("longshore up --port 9000 --concurrency 8", "another port, eight tasks at once"),
    ("longshore up --no-worker", "workers run elsewhere: `longshore worker`"),
    ("longshore up --app shop.tasks", "knows the functions of a module"),
)
def up(
    options: GlobalOptions,
    *,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen at. [default: 127.0.0.1, this machine alone]",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65_535,
            help="Port to listen at; 0 takes any that is free. [default: 8421]",
            show_default=False,
        ),
    ] = None,
    worker: Annotated[
        bool,
        typer.Option("--worker/--no-worker", help="Whether tasks are run here."),
    ] = True,
    queue: Queues = None,
    concurrency: Concurrency = None,
    app: App = None,
) -> int:
    """Run Longshore as a service on this machine.

    One process answers the API, runs tasks, moves jobs on and mends what crashes left behind. At
    the first start it makes a key, in the file `api-key` of the data folder, readable by its owner
    alone; requests need it. It listens at this machine alone unless --host says otherwise; then
    the setting api.hosts must name what it is called there.

    Ctrl-C lets running tasks finish within the setting worker.drain_grace; a second one gives them
    back at once.
    """
    from longshore.interfaces.cli.operations import up

    flags = {
        "api.host": host,
        "api.port": port,
        "worker.queues": tuple(queue) if queue else None,
        "worker.concurrency": concurrency,
        "worker.app": tuple(app) if app else None,
    }
    return up.up(options, flags, with_worker=worker)
