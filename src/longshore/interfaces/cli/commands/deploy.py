"""The commands about an installation on AWS: ``deploy``, ``destroy``, ``status``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longshore.interfaces.cli.options import GlobalOptions, command

_Stage = Annotated[
    str,
    typer.Option(
        "--stage",
        metavar="NAME",
        help="Which installation: several share an account, such as dev and prod.",
        show_default=False,
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="What the stage is to be like. [default: infra/NAME.yaml, if it is there]",
        show_default=False,
    ),
]


@command(
    ("longshore aws deploy --stage dev", "all stacks, as infra/dev.yaml says"),
    ("longshore aws deploy --stage dev --config my.yaml", "as another file says"),
    ("longshore aws deploy --stage dev --render templates", "write the templates, change nothing"),
)
def deploy(
    options: GlobalOptions,
    *,
    stage: _Stage,
    config: _Config = None,
    render: Annotated[
        Path | None,
        typer.Option(
            "--render",
            metavar="FOLDER",
            help="Write the templates there instead, without asking AWS for anything.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Bring an installation to AWS, or bring it up to date.

    Queues, tables, bus, bucket, functions and the API are CloudFormation stacks, deployed one after
    the other. First it says in which account and region. Where nothing is to be changed, nothing
    is; what an earlier try has left half done is mended. If a stack fails, it is put back as it
    was, the first reason is shown, and the command exits with 1.

    Credentials and region are found as all AWS tools find them; the settings aws.region and
    aws.endpoint_url come first. Ctrl-C leaves CloudFormation to finish what it has begun; deploying
    again waits for that and goes on.
    """
    from longshore.interfaces.cli.operations import deploy

    if render is not None:
        return deploy.render(stage, config, render)
    return deploy.deploy(options, stage, config)


@command(
    ("longshore aws destroy --stage dev", "asks first; tables and blobs stay"),
    ("longshore aws destroy --stage dev --with-data --yes", "everything, without being asked"),
)
def destroy(
    options: GlobalOptions,
    *,
    stage: _Stage,
    config: _Config = None,
    with_data: Annotated[
        bool,
        typer.Option(
            "--with-data",
            help="Tables and blobs too: jobs, histories, output. There is no way back.",
            show_default=False,
        ),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)
    ] = False,
) -> int:
    """Take an installation away from AWS.

    Tables and the bucket stay, with all that is in them, and the next deploy of the same stage
    finds them again; --with-data deletes them. Messages are lost; the sweeper of the next
    deployment rings again for every task that is due.

    A stage that is `protected` is not taken away: the command exits with 4 and says what to do.
    Where there is no terminal to ask on, --yes is needed.
    """
    from longshore.interfaces.cli.operations import deploy

    return deploy.destroy(options, stage, config, with_data=with_data, yes=yes)


@command(
    ("longshore aws status --stage dev", "what is deployed, and where"),
    ("longshore aws status --stage dev -o json | jq -r .outputs.Bucket", "for a script"),
    output=True,
)
def status(options: GlobalOptions, *, stage: _Stage, config: _Config = None) -> int:
    """Show the stacks of an installation on AWS, and what one needs to know to use it.

    Exits with 3 if nothing of the stage is deployed, and with 1 if a stack is not as it should be.
    """
    from longshore.interfaces.cli.operations import deploy

    return deploy.status(options, stage, config)
