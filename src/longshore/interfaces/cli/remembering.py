"""The bodies of ``contexts list``, ``add``, ``use`` and ``remove``."""

from __future__ import annotations

import asyncio
import getpass
import sys

from longshore.errors import UsageError
from longshore.interfaces.cli.desks import contexts
from longshore.interfaces.cli.desks.contexts import Context
from longshore.interfaces.cli.exits import say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table
from longshore.interfaces.cli.session import settings_for
from longshore.settings import Settings

_LONGEST_KEY = 200


def list_(here: Here) -> None:
    """List what is remembered."""
    known = contexts.load(settings_for(here).contexts_file)
    if here.json:
        found = [
            {
                "name": name,
                "url": one.url,
                "hasKey": one.key is not None,
                "inUse": name == known.in_use,
            }
            for name, one in sorted(known.by_name.items())
        ]
        print_json({"contexts": found})
    elif known.by_name:
        print_table(
            [Column(""), Column("NAME"), Column("SERVER", flexible=True), Column("KEY")],
            [
                [
                    "*" if name == known.in_use else "",
                    name,
                    one.url,
                    "remembered" if one.key else "from the environment or this machine",
                ]
                for name, one in sorted(known.by_name.items())
            ],
        )
    else:
        say("no contexts yet; commands ask the data folder. See `longshore contexts add --help`")


def add(here: Here, name: str, url: str, *, with_key: bool, insecure: bool) -> None:
    """Remember a server, if it knows the key."""
    settings = settings_for(here)
    contexts.checked_name(name)
    context = Context(url=contexts.checked_url(url), insecure=insecure)
    known = contexts.load(settings.contexts_file)
    if with_key:
        context = Context(url=context.url, key=_asked_key(context.url), insecure=insecure)
    asyncio.run(_greet(context, settings))
    contexts.save(known.with_(name, context), settings.contexts_file)
    print(f"{name} is in use: {context.url}")


def _asked_key(url: str) -> str:
    if sys.stdin.isatty():
        text = getpass.getpass(f"Key to {url}: ")
    else:
        text = sys.stdin.readline(_LONGEST_KEY + 2)
    key = text.strip()
    if not key or len(key) > _LONGEST_KEY or not key.isascii() or not key.isprintable():
        message = "that is no key: `longshore keys create` makes one; --no-key remembers none"
        raise UsageError(message)
    return key


async def _greet(context: Context, settings: Settings) -> None:
    """See that the server is there and the key is good."""
    from longshore.interfaces.cli.desks.remote import connected

    async with connected(context, settings) as desk:
        await desk.jobs(state=None, limit=1, cursor=None)


def use(here: Here, name: str | None, *, none: bool) -> None:
    """Choose one, or none."""
    if (name is None) == (not none):
        message = "name a context, or say --none; `longshore contexts list` lists them"
        raise UsageError(message)
    settings = settings_for(here)
    known = contexts.load(settings.contexts_file).using(name)
    contexts.save(known, settings.contexts_file)
    context = known.current()
    print(f"{name} is in use: {context.url}" if context else "commands ask the data folder again")


def remove(here: Here, name: str) -> None:
    """Forget one."""
    settings = settings_for(here)
    known = contexts.load(settings.contexts_file)
    contexts.save(known.without(name), settings.contexts_file)
    print(f"{name} is forgotten")
