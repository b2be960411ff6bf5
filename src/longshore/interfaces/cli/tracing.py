"""The body of ``longshore trace``: which trace is meant, and where it is.

A trace is a file that an attempt of an agent task leaves. Where there is none, the reason is told:
no agent runs the task, the attempt has not ended, or nothing was kept of it.
"""

from __future__ import annotations

import json
from typing import Any

from longshore.core.agents.trace import FILE, VERSION
from longshore.core.definition import RunnerKind
from longshore.errors import NotFound, UsageError
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
from longshore.interfaces.cli.exits import Missing
from longshore.interfaces.cli.naming import Named
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json

_SHOWN = 8


async def trace(here: Here, text: str, *, attempt: int | None) -> None:
    """Print the trace of an attempt."""
    async with desk_for(here) as desk:
        task = await _task(desk, await desk.find(text))
        number = _attempt(task, attempt)
        found = await _read(desk, task, number)
        if here.json:
            print_json({"requestId": task["requestId"], "attempt": number, **found})
            return
        if found.get("version") != VERSION:
            raise Missing(
                f"{_of(task, number)} was written by another version of Longshore",
                "-o json prints it as it is",
            )
        # Only for those who look at one: it is not needed to fetch it.
        from longshore.interfaces.cli.trace_view import print_trace

        print_trace(found, task, number)


async def _task(desk: Desk, named: Named) -> Document:
    """The task that is meant; of a job, the one that an agent runs."""
    if named.task_id is not None:
        return await desk.task(named.task_id)
    tasks: list[Document] = (await desk.job(named.job_id))["tasks"]
    if len(tasks) == 1:
        return tasks[0]
    runners = {name: await _runner(desk, name) for name in {task["name"] for task in tasks}}
    agents = [task for task in tasks if runners[task["name"]] == RunnerKind.AGENT]
    if not agents:
        advice = f"`longshore logs {named.job_id}` shows what they printed"
        raise Missing(f"none of the tasks of {named.job_id} is run by an agent", advice)
    if len(agents) > 1:
        shown = "\n  ".join(task["requestId"] for task in agents[:_SHOWN])
        more = "\n  …" if len(agents) > _SHOWN else ""
        count = f"{named.job_id} has {len(agents)} tasks that agents run"
        raise UsageError(f"{count}; name one of them:\n  {shown}{more}")
    return agents[0]


async def _runner(desk: Desk, definition: str) -> str | None:
    """What runs the tasks of a definition; None if that cannot be told any more."""
    try:
        return str((await desk.definition(definition, None))["runner"])
    except NotFound:
        return None


def _attempt(task: Document, wanted: int | None) -> int:
    last: int = task["attempt"]
    id_ = task["requestId"]
    if not last:
        raise Missing(f"{id_} has not begun yet", f"`longshore why {id_}` says what it waits for")
    if wanted is not None and wanted > last:
        raise Missing(f"{id_} has no attempt {wanted}", f"its last one is attempt {last}")
    return wanted or last


async def _read(desk: Desk, task: Document, attempt: int) -> dict[str, Any]:
    try:
        data = await desk.artifact(task["requestId"], attempt, FILE)
    except NotFound as error:
        raise await _nothing(desk, task, attempt) from error
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        advice = f"`longshore logs {task['requestId']}` shows what it printed"
        raise Missing(f"{_of(task, attempt)} is damaged", advice)
    return found


async def _nothing(desk: Desk, task: Document, attempt: int) -> Missing:
    id_ = task["requestId"]
    logs = f"`longshore logs {id_}` shows what it printed"
    if (runner := await _runner(desk, task["name"])) not in (None, RunnerKind.AGENT):
        return Missing(f"{id_} is no agent task but a {runner} task, and has no trace", logs)
    if task["workerId"] is not None and attempt == task["attempt"]:
        return Missing(
            f"attempt {attempt} of {id_} has not ended, and leaves its trace then",
            f"`longshore logs -f {id_}` shows what it does",
        )
    return Missing(f"no trace was kept of attempt {attempt} of {id_}", logs)


def _of(task: Document, attempt: int) -> str:
    return f"the trace of attempt {attempt} of {task['requestId']}"
