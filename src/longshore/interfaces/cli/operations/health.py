"""The body of ``longshore health``."""

from __future__ import annotations

from rich.text import Text

from longshore.core.health import Health
from longshore.interfaces.cli.client import ApiClient, open_client
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import Column, print_json, print_pairs, print_table
from longshore.services import documents as d

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
        found = await desk.app.run_health_check()
        if options.json:
            print_json(found)
        elif found.tasks:
            columns = [
                Column("TASK"),
                Column("HEALTH"),
                Column("RUNS FOR", right=True),
                Column("SILENT FOR", right=True),
                Column("LAST EVENT"),
                Column("WORKER"),
            ]
            print_table(columns, [_cells(task) for task in found.tasks])
        else:
            print("nothing runs")
        return _exit_code(*(task.health for task in found.tasks))


def _cells(task: d.CheckedTaskDocument) -> list[str | Text]:
    return [
        task.request_id,
        _health_text(task.health),
        formats.duration_ms_text(task.elapsed),
        formats.duration_ms_text(task.time_since_last_event),
        task.last_event_type.removeprefix("Task ").lower(),
        task.worker_id,
    ]


async def _check_task(options: GlobalOptions, client: ApiClient, text: str) -> int:
    task_id = await client.resolve_task(text)
    found = await client.app.task_health(task_id)
    if options.json:
        print_json(found)
    elif found.health is None:
        print(f"{task_id} is {found.status.replace('_', ' ')}; only what runs has a health")
    else:
        last = (found.last_event_type or "").removeprefix("Task ").lower()
        print_pairs(
            [
                ("task", task_id),
                ("health", _health_text(found.health)),
                ("runs for", formats.duration_ms_text(found.elapsed_ms)),
                ("silent for", f"{formats.duration_ms_text(found.silent_ms)} since {last}"),
                ("worker", found.worker_id or ""),
            ]
        )
    return _exit_code(found.health)


def _health_text(health: str) -> Text:
    return Text(health, style=_STYLES.get(health, ""))


def _exit_code(*healths: str | None) -> int:
    urgent = {one.value for one in Health if one.urgent}
    return ExitCode.FAILED if urgent & set(healths) else ExitCode.OK
