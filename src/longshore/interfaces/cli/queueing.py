"""The bodies of ``queues list``, ``queues pause`` and ``queues resume``."""

from __future__ import annotations

from typing import Any

from longshore.errors import CommandRefused
from longshore.interfaces import views
from longshore.interfaces.cli import words
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_table
from longshore.interfaces.cli.session import existing, opened, settings_for
from longshore.interfaces.cli.wishing import by_whom
from longshore.ports.queues import PausedQueue


async def list_(here: Here) -> None:
    """List what is paused."""
    async with existing(settings_for(here)) as session:
        paused = await session.pausing.paused()
        if here.json:
            print_json({"paused": [_document(queue) for queue in paused]})
        elif paused:
            now = session.backend.clock.now()
            columns = [Column("QUEUE"), Column("PAUSED BY"), Column("FOR"), Column("WHY")]
            rows = [
                (queue.name, queue.by, words.took(now - queue.at), queue.reason or "")
                for queue in paused
            ]
            print_table(columns, rows)
        else:
            print("no queue is paused")


async def pause(here: Here, name: str, *, reason: str | None) -> None:
    """Pause a queue; the first pause counts."""
    async with opened(settings_for(here)) as session:
        paused = await session.pausing.pause(name, by=by_whom(), reason=reason)
        if here.json:
            print_json(_document(paused))
            return
        why = f": {paused.reason}" if paused.reason else ""
        print(f"{paused.name} is paused by {paused.by}{why}")
        print(f"  → longshore queues resume {paused.name}")


async def resume(here: Here, name: str) -> None:
    """Resume a queue."""
    async with existing(settings_for(here)) as session:
        before = await session.pausing.resume(name, by=by_whom())
        if before is None:
            raise CommandRefused(name, "the queue is not paused")
        if here.json:
            print_json(_document(before))
        else:
            print(f"{name} goes on")


def _document(queue: PausedQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "by": queue.by,
        "reason": queue.reason,
        "at": views.moment(queue.at),
    }
