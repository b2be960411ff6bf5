"""The commands for API keys: ``keys list``, ``keys create``, ``keys revoke``."""

from __future__ import annotations

from typing import Annotated

import typer

from longshore.core.api_keys import ApiScope
from longshore.interfaces.cli.client import ApiClient, client_command
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import argument
from longshore.interfaces.cli.render import screen


@client_command(("longshore keys list", "names, scopes and dates"))
async def list_(client: ApiClient) -> None:
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
        },
        empty="no API keys yet; `longshore up` and `longshore keys create` create one",
    )


@client_command(
    ("longshore keys create ci --scope submit --scope read", "for a build server"),
    ("longshore keys create ann --scope admin", "for an administrator"),
    create=True,
)
async def create(
    client: ApiClient,
    name: Annotated[str, argument("NAME", "Shown in events and listings.")],
    *,
    scope: Annotated[list[ApiScope], typer.Option(help="What the key allows; repeatable.")],
) -> None:
    """Create an API key. Its secret is printed to stdout once and stored nowhere.

    \b
    scope    lets the key
    read     read jobs, tasks, events, output, artifacts, budgets and definitions
    submit   submit jobs and add tasks
    operate  cancel, resume, review and replay tasks, change definitions, and add to the
             budgets of jobs and tasks
    admin    do everything, also manage API keys, pause queues and add to the daily budget
    """
    created = await client.app.create_key(name, list(dict.fromkeys(scope)))
    if client.options.json:
        screen.print_json(created)
        return
    # Only the secret goes to stdout, so that it can be redirected to a file unseen.
    scopes = ", ".join(created.scopes)
    print_stderr(f"{created.id} for {created.name} ({scopes}); it is not shown again")
    print(created.key)


@client_command(("longshore keys revoke key-1a2b3c", "takes effect immediately"))
async def revoke(
    client: ApiClient,
    key: Annotated[str, argument("ID", "As `keys list` shows it.")],
) -> None:
    """Revoke an API key. Servers refuse it immediately."""
    revoked = await client.app.revoke_key(key)
    client.options.print_answer(revoked, f"{revoked.id} ({revoked.name}) is revoked")
