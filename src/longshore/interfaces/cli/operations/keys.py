"""The bodies of ``keys list``, ``keys create`` and ``keys revoke``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.text import Text

from longshore.core.api_keys import ApiScope
from longshore.interfaces.cli.clients.api_client import Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_table


async def list_(options: GlobalOptions) -> None:
    """List keys."""
    async with open_client(options) as desk:
        keys = await desk.list_keys()
        if options.json:
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
            print_stderr(
                "no keys yet; `longshore up` makes one, and so does `longshore keys create`"
            )


def _cells(key: Document, now: datetime) -> list[str | Text]:
    revoked = formats.relative_time(formats.parse_time(key["revokedAt"]), now)
    return [
        Text(key["id"], style="dim" if revoked else ""),
        key["name"],
        ", ".join(key["scopes"]),
        formats.relative_time(formats.parse_time(key["createdAt"]), now),
        Text(revoked, style="red"),
    ]


async def create(options: GlobalOptions, name: str, scopes: Sequence[ApiScope]) -> None:
    """Make a key and print it, this once."""
    async with open_client(options, create=True) as desk:
        made = await desk.create_key(name, [scope.value for scope in dict.fromkeys(scopes)])
        if options.json:
            print_json(made)
            return
        # Alone on stdout, so that it can go into a file without anybody seeing it.
        print_stderr(
            f"{made['id']} for {made['name']} ({', '.join(made['scopes'])}); it is not shown again"
        )
        print(made["key"])


async def revoke(options: GlobalOptions, key_id: str) -> None:
    """Let a key allow nothing any more."""
    async with open_client(options) as desk:
        revoked = await desk.revoke_key(key_id)
        if options.json:
            print_json(revoked)
        else:
            print(f"{revoked['id']} ({revoked['name']}) is revoked")
