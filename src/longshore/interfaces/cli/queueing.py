"""The bodies of ``queues list``, ``queues pause`` and ``queues resume``."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from longshore.errors import CommandRefused
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
from longshore.interfaces.cli.exits import say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table


async def list_(here: Here) -> None:
    """List what is paused, and what is held."""
    async with desk_for(here) as desk:
        paused = await desk.paused()
        if here.json:
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
    lasted = words.took(now - since)
    return [queue["name"], queue["by"], lasted, _end_of(queue, now), queue["reason"] or ""]


def _end_of(queue: Document, now: datetime) -> str:
    if (until := queue.get("until")) is None:
        return "when resumed"
    return f"in {words.took(max(datetime.fromisoformat(until) - now, timedelta()))}"


async def tell_of_pauses(desk: Desk, queues: Collection[str]) -> None:
    """Say which of these queues are paused or held: whoever waits for them should know."""
    for queue in await desk.paused():
        if queue["name"] in queues:
            why = f" ({queue['reason']})" if queue["reason"] else ""
            remedy = f"`longshore queues resume {queue['name']}` lets it go on"
            until = queue.get("until")
            so = f"held until {until}" if until else f"paused by {queue['by']}"
            say(f"longshore: queue {queue['name']!r} is {so}{why}; {remedy}")


async def pause(here: Here, name: str, *, reason: str | None) -> None:
    """Pause a queue; the first pause counts."""
    async with desk_for(here, create=True) as desk:
        paused = await desk.pause(name, reason=reason)
        if here.json:
            print_json(paused)
            return
        why = f": {paused['reason']}" if paused["reason"] else ""
        print(f"{paused['name']} is paused by {paused['by']}{why}")
        print(f"  → longshore queues resume {paused['name']}")


async def resume(here: Here, name: str) -> None:
    """Resume a queue."""
    async with desk_for(here) as desk:
        before = await desk.unpause(name)
        if before is None:
            raise CommandRefused(name, "the queue is not paused")
        if here.json:
            print_json(before)
        else:
            print(f"{name} goes on")
