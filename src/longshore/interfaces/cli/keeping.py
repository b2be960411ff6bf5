"""The bodies of ``keys list``, ``keys create`` and ``keys revoke``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from longshore.core.keys import Scope
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Document
from longshore.interfaces.cli.exits import say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table


async def list_(here: Here) -> None:
    """List keys."""
    async with desk_for(here) as desk:
        keys = await desk.access_keys()
        if here.json:
            print_json({"keys": keys})
        elif keys:
            columns = [
                Column("KEY"),
                Column("NAME", flexible=True),
                Column("SCOPES"),
                Column("CREATED"),
                Column("REVOKED"),
            ]
            print_table(columns, [_cells(key, desk.now()) for key in keys])
        else:
            say("no keys yet; `longshore up` makes one, and so does `longshore keys create`")


def _cells(key: Document, now: datetime) -> list[str | Text]:
    revoked = words.ago(words.moment(key["revokedAt"]), now)
    return [
        Text(key["id"], style="dim" if revoked else ""),
        key["name"],
        ", ".join(key["scopes"]),
        words.ago(words.moment(key["createdAt"]), now),
        Text(revoked, style="red"),
    ]


async def create(here: Here, name: str, scopes: Sequence[Scope]) -> None:
    """Make a key and print it, this once."""
    async with desk_for(here, create=True) as desk:
        made = await desk.new_key(name, [scope.value for scope in dict.fromkeys(scopes)])
        if here.json:
            print_json(made)
            return
        # Alone on stdout, so that it can go into a file without anybody seeing it.
        say(f"{made['id']} for {made['name']} ({', '.join(made['scopes'])}); it is not shown again")
        print(made["key"])


async def revoke(here: Here, key_id: str) -> None:
    """Let a key allow nothing any more."""
    async with desk_for(here) as desk:
        revoked = await desk.revoke_key(key_id)
        if here.json:
            print_json(revoked)
        else:
            print(f"{revoked['id']} ({revoked['name']}) is revoked")
