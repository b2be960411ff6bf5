"""The bodies of ``definitions list``, ``show``, ``apply``, ``delete`` and ``schema``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from longshore.core.definitions import schema
from longshore.errors import UsageError
from longshore.interfaces.cli.clients.api_client import Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_table
from longshore.interfaces.definition_files import read_paths
from longshore.services.documents import definition_request


async def list_(options: GlobalOptions) -> None:
    """List the newest version of each."""
    async with open_client(options) as desk:
        found = await desk.definitions()
        if options.json:
            print_json({"definitions": found})
        elif found:
            print_table(
                [
                    Column("NAME"),
                    Column("VERSION", right=True),
                    Column("RUNNER"),
                    Column("QUEUE"),
                    Column("DESCRIPTION", flexible=True),
                ],
                [_cells(one) for one in found],
            )
        else:
            print_stderr("no definitions yet; `command` and `python` are built in")


def _cells(definition: Document) -> list[str]:
    first_line, *_ = (definition["description"] or "").splitlines() or [""]
    return [
        definition["name"],
        str(definition["version"]),
        definition["runner"],
        definition["queue"] or "",
        first_line,
    ]


async def show(options: GlobalOptions, name: str, version: int | None) -> None:
    """Show one, as it could be written."""
    async with open_client(options) as desk:
        found = await desk.definition(name, version)
        if options.json:
            print_json(found)
            return
        print(f"# version {found['version']}")
        print(yaml.safe_dump(_as_file_document(found), sort_keys=False, allow_unicode=True), end="")


def _as_file_document(definition: Document) -> dict[str, Any]:
    """Without what it leaves open."""
    empty: tuple[Any, ...] = (None, [], {}, "")
    return {key: one for key, one in definition.items() if key != "version" and one not in empty}


async def apply(options: GlobalOptions, files: Sequence[Path], *, check: bool) -> None:
    """Store what files say, if nothing is wrong with any of them."""
    reading = read_paths(files)
    if reading.problems:
        told = "\n  ".join(str(problem) for problem in reading.problems)
        message = f"nothing was stored:\n  {told}"
        raise UsageError(message)
    if check:
        definitions = formats.plural(len(reading.definitions), "definition")
        print(f"{definitions} read, nothing is wrong; nothing was stored")
        return
    async with open_client(options, create=True) as desk:
        before = {one["name"]: one["version"] for one in await desk.definitions()}
        stored = [
            await desk.put_definition(definition_request(one.definition))
            for one in reading.definitions
        ]
        if options.json:
            print_json({"definitions": stored})
        elif stored:
            columns = [Column("NAME"), Column("VERSION", right=True), Column("")]
            print_table(columns, [_result_cells(one, before.get(one["name"])) for one in stored])
        else:
            print_stderr("there are no definitions in these files")


def _result_cells(definition: Document, before: int | None) -> list[str]:
    if before is None:
        what = "new"
    else:
        what = "as it was" if definition["version"] == before else f"changed, was {before}"
    return [definition["name"], str(definition["version"]), what]


def print_schema(options: GlobalOptions) -> None:
    """Print what a definition file looks like, for editors."""
    del options
    print_json(schema.definition_schema())


async def delete(options: GlobalOptions, name: str) -> None:
    """Let no new job name one."""
    async with open_client(options) as desk:
        await desk.delete_definition(name)
        print(f"{name} is deleted; running jobs keep it")
