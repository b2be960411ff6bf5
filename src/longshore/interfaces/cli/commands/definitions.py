"""The commands for definitions: ``definitions list``, ``show``, ``apply``, ``delete``, ``schema``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from longshore.interfaces.cli.options import GlobalOptions, command

_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Of the definition.", show_default=False)
]


@command(("longshore definitions list", "what jobs can name"), output=True, remote=True)
def list_(options: GlobalOptions) -> None:
    """List definitions, the newest version of each."""
    from longshore.interfaces.cli.operations import definitions

    asyncio.run(definitions.list_(options))


@command(
    ("longshore definitions show resize", "as it could be written into a file"),
    ("longshore definitions show resize --version 2", "as an old job was started with"),
    output=True,
    remote=True,
)
def show(
    options: GlobalOptions,
    name: _Name,
    *,
    version: Annotated[
        int | None,
        typer.Option(
            "--version", metavar="N", min=1, help="[default: the newest]", show_default=False
        ),
    ] = None,
) -> None:
    """Show one definition, as YAML that `definitions apply` takes back."""
    from longshore.interfaces.cli.operations import definitions

    asyncio.run(definitions.show(options, name, version))


@command(
    ("longshore definitions apply definitions/", "every file of a folder"),
    ("longshore definitions apply resize.yaml --check", "say what is wrong and store nothing"),
    output=True,
    remote=True,
)
def apply(
    options: GlobalOptions,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE", help="YAML or JSON files, or folders.", show_default=False),
    ],
    *,
    check: Annotated[
        bool, typer.Option("--check", help="Only read them.", show_default=False)
    ] = False,
) -> None:
    """Store the definitions of files, each as its next version unless it is as it was.

    All files are read before anything is stored, and everything that is wrong is told together.
    Jobs that run keep the version that they were started with.
    """
    from longshore.interfaces.cli.operations import definitions

    asyncio.run(definitions.apply(options, files, check=check))


@command(("longshore definitions delete resize", "running jobs keep it"), remote=True)
def delete(options: GlobalOptions, name: _Name) -> None:
    """Let no new job name a definition; jobs that run go on with theirs."""
    from longshore.interfaces.cli.operations import definitions

    asyncio.run(definitions.delete(options, name))


@command(
    ("longshore definitions schema > definition.schema.json", "so that an editor completes them"),
)
def schema(options: GlobalOptions) -> None:
    """Print the JSON Schema of definition files."""
    from longshore.interfaces.cli.operations import definitions

    definitions.print_schema(options)
