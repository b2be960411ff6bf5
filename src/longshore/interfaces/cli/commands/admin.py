"""The commands about the installation itself: ``settings``, ``doctor``, ``demo``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.interfaces.cli.options import GlobalOptions, command


@command(
    ("longshore settings", "what holds here, and why"),
    ("LONGSHORE_WORKER_CONCURRENCY=8 longshore settings", "the environment beats the file"),
    ("longshore settings -o json", "with descriptions and variables"),
    output=True,
)
def settings(options: GlobalOptions) -> None:
    """Show every setting with its value and where it came from.

    A flag counts more than the environment, the environment more than the file longshore.toml, and
    that more than the default.
    """
    from longshore.interfaces.cli.operations import settings

    settings.print_settings(options)


@command(
    ("longshore doctor", "look at everything"),
    ("longshore doctor --audit", "also at every row, event and output that is stored"),
    ("longshore doctor -o json", "for a monitor"),
    output=True,
)
def doctor(
    options: GlobalOptions,
    *,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Also hold all that is stored against what Longshore promises.",
            show_default=False,
        ),
    ] = False,
) -> int:
    """Check this installation, its data folder, its workers and its queues.

    With --audit also its history: an auditor that shares no code with the rest reads every job and
    tells what was lost, done twice, out of order or not whole. It takes some seconds for 10,000
    tasks, and workers can go on meanwhile.

    On AWS it looks at who you are there, whether each service answers, the clock, and every table,
    queue, rule and bucket, which must be as `longshore deploy` makes them.

    Changes nothing. Exits with 1 if something is wrong.
    """
    from longshore.interfaces.cli.operations import doctor

    return doctor.doctor(options, audit=audit)


@command(("longshore demo", "about a quarter of a minute"))
def demo(options: GlobalOptions) -> int:
    """Watch a job of five tasks survive the death of a worker.

    Two real workers in a folder of their own; one is killed in the middle of its task. Whether
    anything was lost or done twice is then read from the recorded events. Needs no account and no
    configuration, and leaves nothing behind.
    """
    from longshore.interfaces.cli.demo import scenario

    return asyncio.run(scenario.run_demo(options))
