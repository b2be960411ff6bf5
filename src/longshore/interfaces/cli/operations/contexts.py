"""The bodies of ``contexts list``, ``add``, ``use`` and ``remove``."""

from __future__ import annotations

import asyncio
import getpass
import sys

from longshore.errors import UsageError
from longshore.interfaces.cli.clients import contexts
from longshore.interfaces.cli.clients.contexts import ServerContext
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render.screen import Column, print_json, print_table
from longshore.interfaces.cli.services import settings_for
from longshore.settings import Settings

_MAX_KEY_LENGTH = 200


def list_(options: GlobalOptions) -> None:
    """List what is remembered."""
    known = contexts.load(settings_for(options).contexts_file)
    if options.json:
        found = [
            {
                "name": name,
                "url": one.url,
                "hasKey": one.key is not None,
                "current": name == known.current_name,
            }
            for name, one in sorted(known.by_name.items())
        ]
        print_json({"contexts": found})
    elif known.by_name:
        print_table(
            [Column(""), Column("NAME"), Column("SERVER", flexible=True), Column("KEY")],
            [
                [
                    "*" if name == known.current_name else "",
                    name,
                    one.url,
                    "remembered" if one.key else "from the environment or this machine",
                ]
                for name, one in sorted(known.by_name.items())
            ],
        )
    else:
        print_stderr(
            "no contexts yet; commands ask the data folder. See `longshore contexts add --help`"
        )


def add(options: GlobalOptions, name: str, url: str, *, with_key: bool, insecure: bool) -> None:
    """Remember a server, if it knows the key."""
    settings = settings_for(options)
    contexts.validate_name(name)
    context = ServerContext(url=contexts.validate_url(url), insecure=insecure)
    known = contexts.load(settings.contexts_file)
    if with_key:
        context = ServerContext(url=context.url, key=_read_key(context.url), insecure=insecure)
    asyncio.run(_check_connection(context, settings))
    contexts.save(known.add(name, context), settings.contexts_file)
    print(f"{name} is in use: {context.url}")


def _read_key(url: str) -> str:
    if sys.stdin.isatty():
        text = getpass.getpass(f"Key to {url}: ")
    else:
        text = sys.stdin.readline(_MAX_KEY_LENGTH + 2)
    key = text.strip()
    if not key or len(key) > _MAX_KEY_LENGTH or not key.isascii() or not key.isprintable():
        message = "that is no key: `longshore keys create` makes one; --no-key remembers none"
        raise UsageError(message)
    return key


async def _check_connection(context: ServerContext, settings: Settings) -> None:
    """See that the server is there and the key is good."""
    from longshore.interfaces.cli.clients.selection import open_server_client

    async with open_server_client(context, settings) as desk:
        await desk.jobs(state=None, limit=1, cursor=None)


def use(options: GlobalOptions, name: str | None, *, none: bool) -> None:
    """Choose one, or none."""
    if (name is None) == (not none):
        message = "name a context, or say --none; `longshore contexts list` lists them"
        raise UsageError(message)
    settings = settings_for(options)
    known = contexts.load(settings.contexts_file).select(name)
    contexts.save(known, settings.contexts_file)
    context = known.current()
    print(f"{name} is in use: {context.url}" if context else "commands ask the data folder again")


def remove(options: GlobalOptions, name: str) -> None:
    """Forget one."""
    settings = settings_for(options)
    known = contexts.load(settings.contexts_file)
    contexts.save(known.remove(name), settings.contexts_file)
    print(f"{name} is forgotten")
