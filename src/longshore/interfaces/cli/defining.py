"""The bodies of ``definitions list``, ``show``, ``apply``, ``delete`` and ``schema``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from longshore.errors import UsageError
from longshore.interfaces import definition_schema
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Document
from longshore.interfaces.cli.exits import say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table
from longshore.interfaces.definition_documents import request_document
from longshore.interfaces.definition_files import read_paths


async def list_(here: Here) -> None:
    """List the newest version of each."""
    async with desk_for(here) as desk:
        found = await desk.definitions()
        if here.json:
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
            say("no definitions yet; `command` and `python` are built in")


def _cells(one: Document) -> list[str]:
    first_line, *_ = (one["description"] or "").splitlines() or [""]
    return [
        one["name"],
        str(one["version"]),
        one["runner"],
        one["queue"] or "",
        first_line,
    ]


async def show(here: Here, name: str, version: int | None) -> None:
    """Show one, as it could be written."""
    async with desk_for(here) as desk:
        found = await desk.definition(name, version)
        if here.json:
            print_json(found)
            return
        print(f"# version {found['version']}")
        print(yaml.safe_dump(_written(found), sort_keys=False, allow_unicode=True), end="")


def _written(found: Document) -> dict[str, Any]:
    """Without what it leaves open."""
    empty: tuple[Any, ...] = (None, [], {}, "")
    return {key: one for key, one in found.items() if key != "version" and one not in empty}


async def apply(here: Here, files: Sequence[Path], *, check: bool) -> None:
    """Store what files say, if nothing is wrong with any of them."""
    reading = read_paths(files)
    if reading.problems:
        told = "\n  ".join(str(problem) for problem in reading.problems)
        message = f"nothing was stored:\n  {told}"
        raise UsageError(message)
    if check:
        definitions = words.number_of(len(reading.documents), "definition")
        print(f"{definitions} read, nothing is wrong; nothing was stored")
        return
    async with desk_for(here, create=True) as desk:
        before = {one["name"]: one["version"] for one in await desk.definitions()}
        stored = [await desk.define(request_document(one.definition)) for one in reading.documents]
        if here.json:
            print_json({"definitions": stored})
        elif stored:
            columns = [Column("NAME"), Column("VERSION", right=True), Column("")]
            print_table(columns, [_outcome(one, before.get(one["name"])) for one in stored])
        else:
            say("there are no definitions in these files")


def _outcome(one: Document, before: int | None) -> list[str]:
    if before is None:
        what = "new"
    else:
        what = "as it was" if one["version"] == before else f"changed, was {before}"
    return [one["name"], str(one["version"]), what]


def schema(here: Here) -> None:
    """Print what a definition file looks like, for editors."""
    del here
    print_json(definition_schema.schema())


async def delete(here: Here, name: str) -> None:
    """Let no new job name one."""
    async with desk_for(here) as desk:
        await desk.undefine(name)
        print(f"{name} is deleted; running jobs keep it")
