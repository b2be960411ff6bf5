"""The commands for queues: ``queues list``, ``queues pause``, ``queues resume``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from longshore.interfaces.cli.client import ApiClient, client_command
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import argument, option
from longshore.interfaces.cli.render import formats

if TYPE_CHECKING:
    from longshore.interfaces.client.http_client import HttpClient
    from longshore.services import documents as d
    from longshore.services.app import Application

_Name = Annotated[str, argument("NAME", "Queue name.")]


@client_command(("longshore queues list", "paused queues, by whom and why"))
async def list_(client: ApiClient) -> None:
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
async def pause(
    client: ApiClient,
    name: _Name,
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
async def resume(client: ApiClient, name: _Name) -> None:
    """Resume a queue that is paused or held.

    Exits with 4 if the queue is neither paused nor held.
    """
    client.options.print_answer(await client.app.resume_queue(name), f"Queue {name!r} resumed")
