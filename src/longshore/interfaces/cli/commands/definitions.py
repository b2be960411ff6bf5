"""The commands for definitions: ``list``, ``show``, ``apply``, ``delete`` and ``schema``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from longshore.core.definitions.definition import BUILTIN_DEFINITIONS
from longshore.errors import CommandRefused, NotFound, UsageError
from longshore.interfaces.cli.client import ApiClient, client_command, open_client
from longshore.interfaces.cli.options import GlobalOptions, argument, command, flag, option
from longshore.interfaces.cli.render import formats, screen

if TYPE_CHECKING:
    from longshore.services import documents as d

_Name = Annotated[str, argument("NAME", "Definition name.")]


@client_command(("longshore definitions list", "names, versions and queues"))
async def list_(client: ApiClient) -> None:
    """List the newest version of each definition.

    Jobs can also use `command` and `python`, which are built in and not listed.
    """
    document = await client.app.list_definitions()
    client.options.print_listing(
        document,
        document.definitions,
        lambda definition: {
            "NAME": definition.name,
            "VERSION": str(definition.version),
            "RUNNER": definition.runner,
            "QUEUE": definition.queue or "",
            "DESCRIPTION": (definition.description or "").partition("\n")[0],
        },
        empty="no definitions yet; `command` and `python` are built in",
    )


@client_command(
    ("longshore definitions show resize", "as a definition file"),
    ("longshore definitions show resize --version 2", "an older version"),
)
async def show(
    client: ApiClient,
    name: _Name,
    *,
    version: Annotated[
        int | None, option("N", "Version to show. [default: the newest]", min=1)
    ] = None,
) -> None:
    """Show a definition as YAML that `definitions apply` accepts."""
    definition = await client.app.get_definition(name, version=version)
    if client.options.json:
        screen.print_json(definition)
        return
    import yaml

    from longshore.services.documents import to_dict

    # As in a file: without the version and without empty fields.
    empty: tuple[Any, ...] = (None, [], {}, "")
    fields = {
        field: value
        for field, value in to_dict(definition).items()
        if field != "version" and value not in empty
    }
    print(f"# version {definition.version}" if definition.version else "# built in")
    print(yaml.safe_dump(fields, sort_keys=False, allow_unicode=True), end="")


@command(
    ("longshore definitions apply definitions/", "every file of a folder"),
    ("longshore definitions apply resize.yaml --check", "validate and store nothing"),
    remote=True,
)
async def apply(
    options: GlobalOptions,
    files: Annotated[list[Path], argument("FILE", "YAML or JSON files, or folders.")],
    *,
    check: Annotated[bool, flag("Validate only.", "--check")] = False,
) -> None:
    """Create or update definitions from files. A definition that changed gets a new version.

    All files are read before anything is stored, and all problems are reported together. Jobs that
    have started keep their version.
    """
    from longshore.interfaces.definition_files import read_paths
    from longshore.services.documents import DefinitionList, definition_request

    reading = read_paths(files)
    if reading.problems:
        problems = "\n  ".join(str(problem) for problem in reading.problems)
        hint = "\nthis looks like a job file; use `longshore submit`"
        is_job = any(problem.path == "tasks" for problem in reading.problems)
        raise UsageError(f"nothing was stored:\n  {problems}{hint if is_job else ''}")
    if check:
        definitions = formats.plural(len(reading.definitions), "definition")
        print(f"{definitions} valid; nothing was stored")
        return
    async with open_client(options, create=True) as client:
        existing = (await client.app.list_definitions()).definitions
        versions = {definition.name: definition.version for definition in existing}
        stored = [
            await client.app.put_definition(definition_request(file.definition))
            for file in reading.definitions
        ]
        options.print_listing(
            DefinitionList(definitions=stored),
            stored,
            lambda definition: {
                "NAME": definition.name,
                "VERSION": str(definition.version),
                "": _change_text(definition, versions.get(definition.name)),
            },
            empty="there are no definitions in these files",
        )


def _change_text(definition: d.DefinitionDocument, before: int | None) -> str:
    if before is None:
        return "new"
    return "unchanged" if definition.version == before else f"changed, was {before}"


@client_command(("longshore definitions delete resize", "running jobs keep it"), output=False)
async def delete(client: ApiClient, name: _Name) -> None:
    """Delete a definition: new jobs cannot use it, and jobs that have started keep it."""
    try:
        await client.app.delete_definition(name)
    except NotFound:
        if name in BUILTIN_DEFINITIONS:
            raise CommandRefused(name, "it is built in and cannot be deleted") from None
        raise
    print(f"Definition {name!r} deleted; jobs that have started keep it")


@command(
    ("longshore definitions schema > definition.schema.json", "completion in an editor"),
    output=False,
)
def schema(options: GlobalOptions) -> None:
    """Print the JSON Schema of definition files."""
    from longshore.core.definitions.reader import definition_schema

    del options
    screen.print_json(definition_schema())
