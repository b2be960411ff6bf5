"""The commands for keys and for the servers that are remembered: ``keys …``, ``contexts …``.

Here are their command lines alone; what they do is imported when they run.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from longshore.core.api_keys import ApiScope
from longshore.interfaces.cli.options import GlobalOptions, command

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the context.", show_default=False)]


@command(("longshore keys list", "who can ask, and for what"), output=True, remote=True)
def list_(options: GlobalOptions) -> None:
    """List the tenant's keys, the oldest first, revoked ones too; never the keys themselves."""
    from longshore.interfaces.cli.operations import keys

    asyncio.run(keys.list_(options))


@command(
    ("longshore keys create ci --scope submit --scope read", "for a build server"),
    ("longshore keys create ann --scope admin", "may do everything"),
    output=True,
    remote=True,
)
def create(
    options: GlobalOptions,
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="What it is called in histories.", show_default=False),
    ],
    *,
    scope: Annotated[
        list[ApiScope],
        typer.Option("--scope", help="What it allows; may be repeated.", show_default=False),
    ],
) -> None:
    """Make a key for the API. It is printed this once, alone on stdout, and kept nowhere.

    read looks, submit gives work, operate cancels, resumes, reviews, replays and defines, admin
    does all of it, makes keys and pauses queues.
    """
    from longshore.interfaces.cli.operations import keys

    asyncio.run(keys.create(options, name, scope))


@command(("longshore keys revoke key-1a2b3c", "at every server at once"), output=True, remote=True)
def revoke(
    options: GlobalOptions,
    key: Annotated[
        str, typer.Argument(metavar="ID", help="As the list names it.", show_default=False)
    ],
) -> None:
    """Let a key allow nothing any more, from this moment on."""
    from longshore.interfaces.cli.operations import keys

    asyncio.run(keys.revoke(options, key))


@command(("longshore contexts list", "the one in use has a star"), output=True)
def contexts(options: GlobalOptions) -> None:
    """List the servers that are remembered."""
    from longshore.interfaces.cli.operations import contexts

    contexts.list_(options)


@command(
    ("longshore contexts add prod --server https://jobs.example.com", "asks for the key"),
    ("longshore contexts add prod --server https://… < key.txt", "takes it from a file"),
    ("longshore contexts add here --server http://127.0.0.1:8421 --no-key", "this machine's own"),
)
def add(
    options: GlobalOptions,
    name: _Name,
    *,
    server: Annotated[
        str, typer.Option("--server", metavar="URL", help="Its address.", show_default=False)
    ],
    key: Annotated[
        bool,
        typer.Option(
            "--key/--no-key",
            help="Remember a key; without, LONGSHORE_API_KEY or this machine's own is used.",
        ),
    ] = True,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let the key cross a network over http.", show_default=False
        ),
    ] = False,
) -> None:
    """Remember a server and its key, and use it from now on.

    The key is typed where nobody sees it, or comes on stdin; it never stands on a command line. It
    is kept in the file that the setting contexts_file names, for its owner alone. Nothing is kept
    unless the server knows the key.
    """
    from longshore.interfaces.cli.operations import contexts

    contexts.add(options, name, server, with_key=key, insecure=insecure)


@command(
    ("longshore contexts use prod", "commands ask this server from now on"),
    ("longshore contexts use --none", "back to the folder of this machine"),
)
def use(
    options: GlobalOptions,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Of the context.", show_default=False)
    ] = None,
    *,
    none: Annotated[
        bool, typer.Option("--none", help="Ask the data folder again.", show_default=False)
    ] = False,
) -> None:
    """Choose which server commands ask, if neither an option nor a setting says otherwise."""
    from longshore.interfaces.cli.operations import contexts

    contexts.use(options, name, none=none)


@command(("longshore contexts remove prod", "with its key"))
def remove(options: GlobalOptions, name: _Name) -> None:
    """Forget a server and its key. The key itself goes on working: `longshore keys revoke`."""
    from longshore.interfaces.cli.operations import contexts

    contexts.remove(options, name)
