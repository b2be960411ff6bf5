"""The commands for queues: ``queues list``, ``queues pause``, ``queues resume``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.interfaces.cli.client import ApiClient, open_client
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions, command
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_answer, print_listing

if TYPE_CHECKING:
    from longshore.services import documents as d

_Name = Annotated[str, typer.Argument(metavar="NAME", help="Queue name.")]


@command(("longshore queues list", "paused queues, by whom and why"))
async def list_(options: GlobalOptions) -> None:
    """List the queues that are paused or held.

    A worker holds a queue for a while when the model's API asks to send fewer requests. A hold ends
    by itself.
    """
    async with open_client(options) as client:
        document, now = await client.app.list_paused_queues(), client.now()
        print_listing(
            options,
            document,
            [Column(title) for title in ("QUEUE", "PAUSED BY", "FOR", "ENDS", "REASON")],
            [
                [
                    queue.name,
                    queue.by,
                    formats.duration_text(now - datetime.fromisoformat(queue.at)),
                    _end_text(queue, now),
                    queue.reason or "",
                ]
                for queue in document.paused
            ],
            empty="no queue is paused",
        )


def _end_text(queue: d.PausedQueueDocument, now: datetime) -> str:
    if queue.until is None:
        return "when resumed"
    rest = max(datetime.fromisoformat(queue.until) - now, timedelta())
    return f"in {formats.duration_text(rest)}"


async def warn_if_paused(client: ApiClient, queues: Collection[str]) -> None:
    """Print which of these queues are paused or held, for a user who waits for their tasks."""
    for queue in (await client.app.list_paused_queues()).paused:
        if queue.name in queues:
            reason = f" ({queue.reason})" if queue.reason else ""
            state = f"held until {queue.until}" if queue.until else f"paused by {queue.by}"
            print_stderr(
                f"longshore: queue {queue.name!r} is {state}{reason};"
                f" to resume it: `longshore queues resume {queue.name}`"
            )


@command(
    ("longshore queues pause mail --reason 'the server is down'", "running tasks continue"),
)
async def pause(
    options: GlobalOptions,
    name: _Name,
    *,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Shown in listings."),
    ] = None,
) -> None:
    """Pause a queue: no worker starts its tasks; running tasks continue.

    A queue that is already paused stays as it is, with its first reason.
    """
    async with open_client(options, create=True) as client:
        paused = await client.app.pause_queue(name, reason=reason)
        why = f": {paused.reason}" if paused.reason else ""
        print_answer(
            options,
            paused,
            f'Queue "{paused.name}" is paused by {paused.by}{why}\n'
            f"  → longshore queues resume {paused.name}",
        )


@command(("longshore queues resume mail", "workers start its tasks at once"), remote=True)
async def resume(options: GlobalOptions, name: _Name) -> None:
    """Resume a queue that is paused or held.

    Exits with 4 if the queue is neither paused nor held.
    """
    async with open_client(options) as client:
        print_answer(options, await client.app.resume_queue(name), f'Queue "{name}" resumed')
