"""The body of ``longshore trace``: which trace is meant, and where it is.

A trace is a file that an attempt of an agent task leaves. Where there is none, the reason is told:
no agent runs the task, the attempt has not ended, or nothing was kept of it.
"""

from __future__ import annotations

import json
from typing import Any

from longshore.core.agents.trace import TRACE_FILE, TRACE_VERSION
from longshore.core.definitions.definition import RunnerKind
from longshore.errors import NotFound, UsageError
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.entity_refs import EntityRef
from longshore.interfaces.cli.exit_codes import MissingResource
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render.screen import print_json

_MAX_SHOWN = 8


async def trace(options: GlobalOptions, text: str, *, attempt: int | None) -> None:
    """Print the trace of an attempt."""
    async with open_client(options) as desk:
        task = await _select_task(desk, await desk.resolve(text))
        number = _select_attempt(task, attempt)
        found = await _read_trace(desk, task, number)
        if options.json:
            print_json({"requestId": task["requestId"], "attempt": number, **found})
            return
        if found.get("version") != TRACE_VERSION:
            raise MissingResource(
                f"{_title(task, number)} was written by another version of Longshore",
                "-o json prints it as it is",
            )
        # Only for those who look at one: it is not needed to fetch it.
        from longshore.interfaces.cli.render.trace import print_trace

        print_trace(found, task, number)


async def _select_task(client: ApiClient, ref: EntityRef) -> Document:
    """The task that is meant; of a job, the one that an agent runs."""
    if ref.task_id is not None:
        return await client.task(ref.task_id)
    tasks: list[Document] = (await client.job(ref.job_id))["tasks"]
    if len(tasks) == 1:
        return tasks[0]
    runners = {name: await _runner_of(client, name) for name in {task["name"] for task in tasks}}
    agents = [task for task in tasks if runners[task["name"]] == RunnerKind.AGENT]
    if not agents:
        advice = f"`longshore logs {ref.job_id}` shows what they printed"
        raise MissingResource(f"none of the tasks of {ref.job_id} is run by an agent", advice)
    if len(agents) > 1:
        shown = "\n  ".join(task["requestId"] for task in agents[:_MAX_SHOWN])
        more = "\n  …" if len(agents) > _MAX_SHOWN else ""
        count = f"{ref.job_id} has {len(agents)} tasks that agents run"
        raise UsageError(f"{count}; name one of them:\n  {shown}{more}")
    return agents[0]


async def _runner_of(client: ApiClient, definition: str) -> str | None:
    """What runs the tasks of a definition; None if that cannot be told any more."""
    try:
        return str((await client.definition(definition, None))["runner"])
    except NotFound:
        return None


def _select_attempt(task: Document, requested: int | None) -> int:
    last: int = task["attempt"]
    id_ = task["requestId"]
    if not last:
        raise MissingResource(
            f"{id_} has not begun yet", f"`longshore why {id_}` says what it waits for"
        )
    if requested is not None and requested > last:
        raise MissingResource(
            f"{id_} has no attempt {requested}", f"its last one is attempt {last}"
        )
    return requested or last


async def _read_trace(client: ApiClient, task: Document, attempt: int) -> dict[str, Any]:
    try:
        data = await client.artifact(task["requestId"], attempt, TRACE_FILE)
    except NotFound as error:
        raise await _missing_trace(client, task, attempt) from error
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        advice = f"`longshore logs {task['requestId']}` shows what it printed"
        raise MissingResource(f"{_title(task, attempt)} is damaged", advice)
    return found


async def _missing_trace(client: ApiClient, task: Document, attempt: int) -> MissingResource:
    id_ = task["requestId"]
    logs = f"`longshore logs {id_}` shows what it printed"
    if (runner := await _runner_of(client, task["name"])) not in (None, RunnerKind.AGENT):
        return MissingResource(
            f"{id_} is no agent task but a {runner} task, and has no trace", logs
        )
    if task["workerId"] is not None and attempt == task["attempt"]:
        return MissingResource(
            f"attempt {attempt} of {id_} has not ended, and leaves its trace then",
            f"`longshore logs -f {id_}` shows what it does",
        )
    return MissingResource(f"no trace was kept of attempt {attempt} of {id_}", logs)


def _title(task: Document, attempt: int) -> str:
    return f"the trace of attempt {attempt} of {task['requestId']}"
