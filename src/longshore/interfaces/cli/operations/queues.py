"""The bodies of ``queues list``, ``queues pause`` and ``queues resume``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from longshore.errors import CommandRefused
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_table


async def list_(options: GlobalOptions) -> None:
    """List what is paused, and what is held."""
    async with open_client(options) as desk:
        paused = await desk.paused_queues()
        if options.json:
            print_json({"paused": paused})
        elif paused:
            print_table(
                [Column(head) for head in ("QUEUE", "PAUSED BY", "FOR", "ENDS", "WHY")],
                [_cells(queue, desk.now()) for queue in paused],
            )
        else:
            print("no queue is paused")


def _cells(queue: Document, now: datetime) -> list[str]:
    since = datetime.fromisoformat(queue["at"])
    lasted = formats.duration_text(now - since)
    return [queue["name"], queue["by"], lasted, _end_text(queue, now), queue["reason"] or ""]


def _end_text(queue: Document, now: datetime) -> str:
    if (until := queue.get("until")) is None:
        return "when resumed"
    return f"in {formats.duration_text(max(datetime.fromisoformat(until) - now, timedelta()))}"


async def warn_if_paused(client: ApiClient, queues: Collection[str]) -> None:
    """Say which of these queues are paused or held: whoever waits for them should know."""
    for queue in await client.paused_queues():
        if queue["name"] in queues:
            why = f" ({queue['reason']})" if queue["reason"] else ""
            remedy = f"`longshore queues resume {queue['name']}` lets it go on"
            until = queue.get("until")
            so = f"held until {until}" if until else f"paused by {queue['by']}"
            print_stderr(f"longshore: queue {queue['name']!r} is {so}{why}; {remedy}")


async def pause(options: GlobalOptions, name: str, *, reason: str | None) -> None:
    """Pause a queue; the first pause counts."""
    async with open_client(options, create=True) as desk:
        paused = await desk.pause_queue(name, reason=reason)
        if options.json:
            print_json(paused)
            return
        why = f": {paused['reason']}" if paused["reason"] else ""
        print(f"{paused['name']} is paused by {paused['by']}{why}")
        print(f"  → longshore queues resume {paused['name']}")


async def resume(options: GlobalOptions, name: str) -> None:
    """Resume a queue."""
    async with open_client(options) as desk:
        before = await desk.resume_queue(name)
        if before is None:
            raise CommandRefused(name, "the queue is not paused")
        if options.json:
            print_json(before)
        else:
            print(f"{name} goes on")
