"""The body of ``longshore health``."""

from __future__ import annotations

from rich.text import Text

from longshore.core.health import Health
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
from longshore.interfaces.cli.exits import ExitCode
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import Column, print_json, print_pairs, print_table
from longshore.interfaces.cli.wishing import task_meant

_STYLES = {
    Health.HEALTHY.value: "green",
    Health.WARNING.value: "yellow",
    Health.CRITICAL.value: "bold red",
    Health.OVERTIME.value: "bold red",
}


async def health(here: Here, text: str | None) -> int:
    """Check one task, or all that runs; the exit code."""
    async with desk_for(here) as desk:
        if text is not None:
            return await _one(here, desk, text)
        found = await desk.check_health()
        if here.json:
            print_json(found)
        elif found["tasks"]:
            columns = [
                Column("TASK"),
                Column("HEALTH"),
                Column("RUNS FOR", right=True),
                Column("SILENT FOR", right=True),
                Column("LAST EVENT"),
                Column("WORKER"),
            ]
            print_table(columns, [_cells(task) for task in found["tasks"]])
        else:
            print("nothing runs")
        return _code(*(task["health"] for task in found["tasks"]))


def _cells(task: Document) -> list[str | Text]:
    return [
        task["requestId"],
        _shown(task["health"]),
        words.lasted(task["elapsed"]),
        words.lasted(task["timeSinceLastEvent"]),
        task["lastEventType"].removeprefix("Task ").lower(),
        task["workerId"],
    ]


async def _one(here: Here, desk: Desk, text: str) -> int:
    task_id = await task_meant(desk, text)
    found = await desk.health(task_id)
    if here.json:
        print_json(found)
    elif found["health"] is None:
        print(f"{task_id} is {found['status'].replace('_', ' ')}; only what runs has a health")
    else:
        last = found["lastEventType"].removeprefix("Task ").lower()
        print_pairs(
            [
                ("task", task_id),
                ("health", found["health"]),
                ("runs for", words.lasted(found["elapsedMs"])),
                ("silent for", f"{words.lasted(found['silentMs'])} since {last}"),
                ("worker", found["workerId"]),
            ]
        )
    return _code(found["health"])


def _shown(health: str) -> Text:
    return Text(health, style=_STYLES.get(health, ""))


def _code(*found: str | None) -> int:
    urgent = {one.value for one in Health if one.urgent}
    return ExitCode.FAILED if urgent & set(found) else ExitCode.OK
