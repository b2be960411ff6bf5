"""The commands for saved servers: ``contexts list``, ``add``, ``use``, ``remove``."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.errors import UsageError
from longshore.interfaces.cli import contexts
from longshore.interfaces.cli.client import load_command_settings, open_server
from longshore.interfaces.cli.contexts import ServerContext
from longshore.interfaces.cli.options import GlobalOptions, argument, command, flag, option

if TYPE_CHECKING:
    from longshore.settings import Settings

_Name = Annotated[str, argument("NAME", "Context name.")]
_MAX_KEY_LENGTH = 200


@command(("longshore contexts list", "the current context has a star"))
def contexts_list(options: GlobalOptions) -> None:
    """List the saved servers."""
    saved = contexts.load(load_command_settings(options).settings.contexts_file)
    documents = [
        {
            "name": name,
            "url": context.url,
            "hasKey": context.key is not None,
            "current": name == saved.current_name,
        }
        for name, context in sorted(saved.by_name.items())
    ]
    options.print_listing(
        {"contexts": documents},
        documents,
        lambda document: {
            "": "*" if document["current"] else "",
            "NAME": str(document["name"]),
            "SERVER": str(document["url"]),
            "KEY": "saved" if document["hasKey"] else "from the environment or this machine",
        },
        empty="no contexts yet: commands use the data folder; see `longshore contexts add --help`",
    )


@command(
    ("longshore contexts add prod --server https://jobs.example.com", "asks for the key"),
    ("longshore contexts add prod --server https://… < key.txt", "reads it from a file"),
    ("longshore contexts add here --server http://127.0.0.1:8421 --no-key", "this machine's key"),
    output=False,
)
def contexts_add(
    options: GlobalOptions,
    name: _Name,
    *,
    server: Annotated[str, option("URL", "Server URL.")],
    key: Annotated[
        bool,
        typer.Option(
            "--key/--no-key",
            help="Save a key. Without one, LONGSHORE_API_KEY or this machine's key is used.",
        ),
    ] = True,
    insecure: Annotated[bool, flag("Allow sending the key over http.", "--insecure")] = False,
) -> None:
    """Save a server and its API key, and make it the current context.

    The key is typed without being shown, or read from stdin; it is never an argument. It is stored
    in the file that the setting contexts_file names, which only its owner can read. Nothing is
    stored unless the server accepts the key.
    """
    settings = load_command_settings(options).settings
    contexts.validate_name(name)
    url = contexts.validate_url(server)
    saved = contexts.load(settings.contexts_file)
    context = ServerContext(url=url, key=_read_key(url) if key else None, insecure=insecure)
    asyncio.run(_check_server(context, settings))
    saved.by_name[name], saved.current_name = context, name
    contexts.save(saved, settings.contexts_file)
    print(f"Current context: {name!r}, {url}")


async def _check_server(context: ServerContext, settings: Settings) -> None:
    """Check that the server can be reached and accepts the key."""
    async with open_server(context, settings) as server:
        await server.list_jobs(limit=1)


def _read_key(url: str) -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        text = getpass(f"API key for {url}: ")
    else:
        text = sys.stdin.readline(_MAX_KEY_LENGTH + 2)
    key = text.strip()
    if not key or len(key) > _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        problem = "this is not an API key" if key else "no API key given"
        hint = "create one on the server with `longshore keys create`, or use --no-key"
        raise UsageError(f"{problem}; {hint}")
    return key


@command(
    ("longshore contexts use prod", "commands use this server"),
    ("longshore contexts use --none", "commands use the data folder"),
    output=False,
)
def contexts_use(
    options: GlobalOptions,
    name: Annotated[str | None, argument("NAME", "Context name.")] = None,
    *,
    none: Annotated[bool, flag("Use the data folder.", "--none")] = False,
) -> None:
    """Choose the current context: the server that commands use unless an option names another."""
    if (name is None) == (not none):
        raise UsageError("name a context, or use --none; `longshore contexts list` lists them")
    path = load_command_settings(options).settings.contexts_file
    saved = contexts.load(path)
    context = saved.get(name) if name else None
    saved.current_name = name
    contexts.save(saved, path)
    print(
        f"Current context: {name!r}, {context.url}" if context else "Commands use the data folder"
    )


@command(("longshore contexts remove prod", "also removes its key"), output=False)
def contexts_remove(options: GlobalOptions, name: _Name) -> None:
    """Remove a saved server and its key. The key stays valid: see `longshore keys revoke`."""
    path = load_command_settings(options).settings.contexts_file
    saved = contexts.load(path)
    saved.get(name)  # checks that it exists
    del saved.by_name[name]
    if saved.current_name == name:
        saved.current_name = None
    contexts.save(saved, path)
    print(f"Removed context {name!r}")
