"""The commands that manage queues, budgets, definitions and API keys."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.core.api_keys import ApiScope
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS
from longshore.errors import CommandRefused, NotFound, UsageError
from longshore.interfaces.cli.client import ApiClient, client_command, open_client
from longshore.interfaces.cli.commands.shared import RequestId
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions, argument, command, flag, option
from longshore.interfaces.cli.render import formats, screen

if TYPE_CHECKING:
    from longshore.interfaces.client.http_client import HttpClient
    from longshore.services import documents as d
    from longshore.services.app import Application

# Queues -------------------------------------------------------------------------------------------

_QueueName = Annotated[str, argument("NAME", "Queue name.")]


@client_command(("longshore queues list", "paused queues, by whom and why"))
async def queues_list(client: ApiClient) -> None:
    """List queues that are paused or on hold. Queues that run normally are not listed.

    A worker holds a queue for a while when the model's API asks to send fewer requests. A hold ends
    by itself.
    """
    document, now = await client.app.list_paused_queues(), client.now()
    client.options.print_listing(
        document,
        document.paused,
        lambda queue: {
            "QUEUE": queue.name,
            "PAUSED BY": queue.by,
            "FOR": formats.duration_text(now - datetime.fromisoformat(queue.at)),
            "ENDS": _end_text(queue, now),
            "REASON": queue.reason or "",
        },
        empty="no queue is paused or on hold (queues that run normally are not listed)",
    )


def _end_text(queue: d.PausedQueueDocument, now: datetime) -> str:
    if queue.until is None:
        return "when resumed"
    rest = max(datetime.fromisoformat(queue.until) - now, timedelta())
    return f"in {formats.duration_text(rest)}"


async def warn_if_paused(app: Application | HttpClient, queues: Collection[str]) -> None:
    """Print which of these queues are paused or held, for a user who waits for their tasks."""
    for queue in (await app.list_paused_queues()).paused:
        if queue.name in queues:
            reason = f" ({queue.reason})" if queue.reason else ""
            state = f"held until {queue.until}" if queue.until else f"paused by {queue.by}"
            print_stderr(
                f"longshore: queue {queue.name!r} is {state}{reason};"
                f" to resume it: `longshore queues resume {queue.name}`"
            )


@client_command(
    ("longshore queues pause mail --reason 'the server is down'", "running tasks continue"),
    create=True,
)
async def queues_pause(
    client: ApiClient,
    name: _QueueName,
    *,
    reason: Annotated[str | None, option("TEXT", "Shown in listings.")] = None,
) -> None:
    """Pause a queue: no worker starts its tasks; running tasks continue.

    A queue that is already paused stays as it is, with its first reason.
    """
    paused = await client.app.pause_queue(name, reason=reason)
    why = f": {paused.reason}" if paused.reason else ""
    text = f"Queue {paused.name!r} is paused by {paused.by}{why}"
    client.options.print_answer(paused, f"{text}\n  → longshore queues resume {paused.name}")


@client_command(("longshore queues resume mail", "workers start its tasks at once"))
async def queues_resume(client: ApiClient, name: _QueueName) -> None:
    """Resume a queue that is paused or held.

    Exits with 4 if the queue is neither paused nor held.
    """
    client.options.print_answer(await client.app.resume_queue(name), f"Queue {name!r} resumed")


# Retention ----------------------------------------------------------------------------------------


@client_command(
    ("longshore prune --older-than 30d --dry-run", "count the jobs that ended 30 days ago"),
    ("longshore prune --older-than 30d", "remove them, with output, results and artifacts"),
)
async def prune(
    client: ApiClient,
    *,
    older_than: Annotated[str, option("DURATION", "Time since the end of the job, such as 30d.")],
    dry_run: Annotated[bool, flag("Only count the jobs.", "--dry-run")] = False,
) -> None:
    """Remove jobs that ended long ago, with everything that belongs to them.

    Running jobs stay. Request ids of removed jobs are remembered for as long again. The setting
    retention.jobs does the same by itself.
    """
    answer = await client.app.prune_jobs(older_than, dry_run=dry_run)
    total = answer.jobs
    while answer.more and not dry_run:
        answer = await client.app.prune_jobs(older_than)
        total += answer.jobs
    answer = type(answer)(jobs=total, more=answer.more)
    text = "would be removed" if dry_run else "removed"
    least = "at least " if answer.more else ""
    client.options.print_answer(answer, f"{least}{formats.plural(total, 'job')} {text}")


# Budgets ------------------------------------------------------------------------------------------

_BudgetId = Annotated[str, argument("ID", "ID or unique prefix of a job or task, or 'today'.")]
_TODAY = "today"
_BUDGET_UNITS = {"usd": "dollars", "tokens": "tokens", "minutes": "minutes"}
_BUDGET_FORMATS = {"usd": ",.4f", "tokens": ",.0f", "minutes": ",.1f"}


@client_command(
    ("longshore budget show today", "limit and spending of today"),
    ("longshore budget show job-4f2", "of one job"),
)
async def budget_show(client: ApiClient, id_: _BudgetId) -> None:
    """Show the budget of a job, of a task or of today, and how much of it agents have spent.

    The budget of a task is set in its definition, of a job in the job file, of a day in the
    settings. Days begin at midnight UTC.
    """
    entity_id = await _resolve_budget(client, id_)
    _print_budget(client, entity_id or _TODAY, await client.app.get_budget(entity_id))


@client_command(
    ("longshore budget add job-4f2_review --usd 5", "a parked task continues"),
    ("longshore budget add today --tokens 1000000", "for all tasks of today"),
)
async def budget_add(
    client: ApiClient,
    id_: _BudgetId,
    *,
    usd: Annotated[float | None, option("N", "Dollars.", min=0.000001)] = None,
    tokens: Annotated[int | None, option("N", "Tokens.", min=1, max=10**15)] = None,
    minutes: Annotated[float | None, option("N", "Minutes.", min=0.001)] = None,
    request_id: RequestId = None,
) -> None:
    """Add to the budget of a job, of a task or of today.

    Tasks that were parked because the budget was used up continue in the same conversation.
    """
    from longshore.core.budgets import MAX_AMOUNT, Budget

    amounts = {"usd": usd, "tokens": tokens, "minutes": minutes}
    for unit, amount in amounts.items():
        if amount is not None and amount > MAX_AMOUNT:
            raise UsageError(f"--{unit}: {MAX_AMOUNT:,} at most")
    more = Budget(usd=usd, tokens=tokens, minutes=minutes)
    if not more:
        raise UsageError("nothing to add: use --usd, --tokens or --minutes")
    entity_id = await _resolve_budget(client, id_)
    status = await client.app.add_budget(
        more, entity_id, request_id=request_id or secrets.token_hex(8)
    )
    _print_budget(client, f"{entity_id or _TODAY}: {more} more", status)
    if client.options.json:
        return
    for unit, name in _BUDGET_UNITS.items():
        limit, spent = getattr(status.limit, unit), getattr(status.spent, unit)
        # A task that continues is parked again at once.
        if limit is not None and spent >= limit:
            shown = f"{spent:{_BUDGET_FORMATS[unit]}} of {limit:{_BUDGET_FORMATS[unit]}} {name}"
            print_stderr(f"longshore: the budget is still used up: {shown}; add more")
    if entity_id is not None and "_" in entity_id:
        # The budget of its job or of the day may be used up too.
        parked = (await client.app.get_task(entity_id)).parked
        if parked is not None:
            hint = f"`longshore why {entity_id}` explains how to continue"
            print_stderr(f"longshore: the task is still parked, {parked.reason}; {hint}")


async def _resolve_budget(client: ApiClient, text: str) -> str | None:
    return None if text == _TODAY else (await client.resolve(text)).id


def _print_budget(client: ApiClient, title: str, status: d.BudgetStatusDocument) -> None:
    client.options.print_answer(status, title)
    if client.options.json:
        return
    rows = []
    for unit, name in _BUDGET_UNITS.items():
        row = {"": name}
        for column in ("limit", "added", "spent", "reserved"):
            amount: float | None = getattr(getattr(status, column), unit)
            none = "no limit" if column == "limit" else ""
            row[column.upper()] = none if amount is None else f"{amount:{_BUDGET_FORMATS[unit]}}"
        rows.append(row)
    screen.print_table(rows)


# Definitions --------------------------------------------------------------------------------------

_DefinitionName = Annotated[str, argument("NAME", "Definition name.")]


@client_command(("longshore definitions list", "names, versions and queues"))
async def definitions_list(client: ApiClient) -> None:
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
async def definitions_show(
    client: ApiClient,
    name: _DefinitionName,
    *,
    version: Annotated[
        int | None, option("N", "Version to show. [default: the newest]", min=1, max=1_000_000_000)
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
async def definitions_apply(
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
            await client.app.put_definition(definition.name, definition_request(definition))
            for definition in (file.definition for file in reading.definitions)
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
async def definitions_delete(client: ApiClient, name: _DefinitionName) -> None:
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
def definitions_schema(options: GlobalOptions) -> None:
    """Print the JSON Schema of definition files."""
    from longshore.core.definitions.reader import definition_schema

    del options
    screen.print_json(definition_schema())


# API keys -----------------------------------------------------------------------------------------


@client_command(("longshore keys list", "names, scopes and dates"))
async def keys_list(client: ApiClient) -> None:
    """List the tenant's API keys, oldest first, including revoked keys. Secrets are not shown."""
    document = await client.app.list_keys()
    client.options.print_listing(
        document,
        document.keys,
        lambda key: {
            "KEY": screen.styled(key.id, "dim" if key.revoked_at else ""),
            "NAME": key.name,
            "SCOPES": ", ".join(key.scopes),
            "CREATED": client.ago(key.created_at),
            "REVOKED": screen.styled(client.ago(key.revoked_at), "red"),
            "EXPIRES": client.ago(key.expires_at),
            "DEFINITIONS": ", ".join(key.definitions or ()),
            "QUEUES": ", ".join(key.queues or ()),
        },
        empty="no API keys yet; `longshore up` and `longshore keys create` create one",
    )


@client_command(
    ("longshore keys create ci --scope submit --scope read --expires 30d", "for a build server"),
    ("longshore keys create shop --scope submit --definitions report", "one kind of task only"),
    ("longshore keys create ann --scope admin", "for an administrator"),
    create=True,
)
async def keys_create(
    client: ApiClient,
    name: Annotated[str, argument("NAME", "Shown in events and listings.")],
    *,
    scope: Annotated[list[ApiScope], typer.Option(help="What the key allows; repeatable.")],
    expires: Annotated[
        str | None, option("TIME", "Refuse the key after this time. [default: never]")
    ] = None,
    definitions: Annotated[
        str | None, option("NAMES", "Start tasks of these only, as a,b. [default: any]")
    ] = None,
    queues: Annotated[
        str | None, option("NAMES", "Start tasks in these only, as a,b. [default: any]")
    ] = None,
) -> None:
    """Create an API key. Its secret is printed to stdout once and stored nowhere.

    \b
    scope    lets the key
    read     read jobs, tasks, events, output, artifacts, budgets and definitions
    submit   submit jobs and add tasks
    operate  cancel, resume, review and replay tasks, change definitions, and add to the
             budgets of jobs and tasks
    admin    do everything, also manage API keys, pause queues and add to the daily budget

    A key that may submit may run any command as the user of the workers, unless --definitions
    limits it to definitions whose options an input cannot set. Tasks of all tenants that share a
    worker can read and change each other's files; see docs/explain/threat-model.md.

    A limited key cannot submit, add, revise, resume or replay other tasks, and cannot have the
    scope admin. With --definitions it cannot change definitions.
    """
    created = await client.app.create_key(
        name,
        list(dict.fromkeys(scope)),
        expires=expires,
        definitions=_names(definitions),
        queues=_names(queues),
    )
    if client.options.json:
        screen.print_json(created)
        return
    # Only the secret goes to stdout, so that it can be redirected to a file unseen.
    scopes = ", ".join(created.scopes)
    print_stderr(f"{created.id} for {created.name} ({scopes}); it is not shown again")
    if created.warning is not None:
        print_stderr(f"longshore: warning: {created.warning}")
    print(created.key)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


@client_command(("longshore keys revoke key-1a2b3c", "takes effect immediately"))
async def keys_revoke(
    client: ApiClient,
    key: Annotated[str, argument("ID", "As `keys list` shows it.")],
) -> None:
    """Revoke an API key. Servers refuse it immediately."""
    revoked = await client.app.revoke_key(key)
    client.options.print_answer(revoked, f"{revoked.id} ({revoked.name}) is revoked")
