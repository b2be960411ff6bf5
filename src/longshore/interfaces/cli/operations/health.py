"""The body of ``longshore health``."""

from __future__ import annotations

from rich.text import Text

from longshore.core.health import Health
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.operations.operate import resolve_task
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_pairs, print_table

_STYLES = {
    Health.HEALTHY.value: "green",
    Health.WARNING.value: "yellow",
    Health.CRITICAL.value: "bold red",
    Health.OVERTIME.value: "bold red",
}


async def health(options: GlobalOptions, text: str | None) -> int:
    """Check one task, or all that runs; the exit code."""
    async with open_client(options) as desk:
        if text is not None:
            return await _check_task(options, desk, text)
        found = await desk.check_health()
        if options.json:
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
        return _exit_code(*(task["health"] for task in found["tasks"]))


def _cells(task: Document) -> list[str | Text]:
    return [
        task["requestId"],
        _health_text(task["health"]),
        formats.duration_ms_text(task["elapsed"]),
        formats.duration_ms_text(task["timeSinceLastEvent"]),
        task["lastEventType"].removeprefix("Task ").lower(),
        task["workerId"],
    ]


async def _check_task(options: GlobalOptions, client: ApiClient, text: str) -> int:
    task_id = await resolve_task(client, text)
    found = await client.health(task_id)
    if options.json:
        print_json(found)
    elif found["health"] is None:
        print(f"{task_id} is {found['status'].replace('_', ' ')}; only what runs has a health")
    else:
        last = found["lastEventType"].removeprefix("Task ").lower()
        print_pairs(
            [
                ("task", task_id),
                ("health", found["health"]),
                ("runs for", formats.duration_ms_text(found["elapsedMs"])),
                ("silent for", f"{formats.duration_ms_text(found['silentMs'])} since {last}"),
                ("worker", found["workerId"]),
            ]
        )
    return _exit_code(found["health"])


def _health_text(health: str) -> Text:
    return Text(health, style=_STYLES.get(health, ""))


def _exit_code(*healths: str | None) -> int:
    urgent = {one.value for one in Health if one.urgent}
    return ExitCode.FAILED if urgent & set(healths) else ExitCode.OK
