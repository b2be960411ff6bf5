"""The bodies of ``longshore jobs``, ``job`` and ``tasks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.text import Text

from longshore.core.tasks.states import JobState, TaskState
from longshore.interfaces.cli.clients.api_client import Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.exit_codes import print_stderr
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import (
    Column,
    console,
    print_json,
    print_pairs,
    print_table,
    print_table_with_errors,
    state_text,
)


async def jobs(
    options: GlobalOptions, state: JobState | None, limit: int, cursor: str | None
) -> None:
    """Print a page of jobs."""
    async with open_client(options) as desk:
        page = await desk.jobs(state=state, limit=limit, cursor=cursor)
        if options.json:
            print_json(page)
            return
        if not page["jobs"]:
            print_stderr(
                f"no jobs{f' are {state}' if state else ' yet; try `longshore run -- echo hello`'}"
            )
            return
        now, costs = desk.now(), _CostColumn(page["jobs"])
        print_table(
            [
                Column("JOB"),
                Column("NAME", flexible=True),
                Column("STATE"),
                Column("TASKS", right=True),
                Column("CREATED"),
                Column("TOOK", right=True),
                *costs.column,
            ],
            [[*_job_row(job, now), *costs.cell(job)] for job in page["jobs"]],
        )
        _print_more_hint(page["cursor"])


class _CostColumn:
    """The column COST of jobs or tasks: it is there only if any of them cost something."""

    def __init__(self, shown: Sequence[Document]) -> None:
        there = any(formats.cost(_cost(document)) for document in shown)
        self.column = [Column("COST", right=True)] if there else []

    def cell(self, document: Document) -> list[str]:
        """The cell of one of them."""
        return [formats.cost(_cost(document))] if self.column else []


def _cost(document: Document) -> float:
    return float(document["usage"]["costUsd"])


def _job_row(job: Document, now: datetime) -> list[str | Text]:
    return [
        job["jobId"],
        job["name"] or "",
        state_text(job["status"]),
        f"{job['progress']['completed']}/{job['totalTasks']}",
        formats.relative_time(formats.parse_time(job["createdAt"]), now),
        formats.duration_text(_age(job, now)),
    ]


def _age(job: Document, now: datetime) -> timedelta:
    until = formats.parse_time(job["finishedAt"]) or now
    return max(until - datetime.fromisoformat(job["createdAt"]), timedelta())


def _print_more_hint(cursor: str | None) -> None:
    if cursor is not None:
        print_stderr(f"there are more: --cursor {cursor}")


async def tasks(
    options: GlobalOptions, job: str | None, state: TaskState | None, limit: int, cursor: str | None
) -> None:
    """Print a page of tasks."""
    async with open_client(options) as desk:
        job_id = (await desk.resolve(job)).job_id if job else None
        page = await desk.tasks(job_id=job_id, state=state, limit=limit, cursor=cursor)
        if options.json:
            print_json(page)
            return
        if not page["tasks"]:
            print_stderr(f"no tasks{f' are {state.value}' if state else ''}")
            return
        _print_tasks(page["tasks"], desk.now())
        _print_more_hint(page["cursor"])


def _print_tasks(tasks: Sequence[Document], now: datetime) -> None:
    costs = _CostColumn(tasks)
    print_table_with_errors(
        [
            Column("TASK"),
            Column("STATE"),
            Column("ATTEMPTS", right=True),
            Column("EXIT", right=True),
            Column("CREATED"),
            Column("TOOK", right=True),
            *costs.column,
        ],
        [[*_listed_task_row(task, now), *costs.cell(task)] for task in tasks],
        [_error(task) for task in tasks],
    )


def _listed_task_row(task: Document, now: datetime) -> list[str | Text]:
    return [
        task["requestId"],
        state_text(task["status"]),
        _attempts(task),
        _exit(task),
        formats.relative_time(formats.parse_time(task["createdAt"]), now),
        _run_time(task, now),
    ]


def _attempts(task: Document) -> str:
    attempt, most = task["attempt"], task["maxAttempts"]
    if attempt > most:
        return str(attempt)  # some were given back or parked, and those do not count
    return f"{attempt}/{most}" if attempt else ""


def _exit(task: Document) -> str:
    if task["exitCode"] is not None:
        return str(task["exitCode"])
    return task["error"]["signal"] or "" if task["error"] and not task["workerId"] else ""


def _run_time(task: Document, now: datetime) -> str:
    begun = formats.parse_time(task["startedAt"])
    if task["workerId"] is not None and begun is not None:
        return formats.duration_text(max(now - begun, timedelta()))
    return formats.duration_ms_text(task["durationMs"])


def _error(task: Document) -> str:
    if task["parked"] is not None:
        return str(task["parked"]["reason"])
    # What an earlier attempt failed with is no longer of interest once the task has completed.
    if task["error"] is None or task["status"] == TaskState.COMPLETED.value:
        return ""
    return str(task["error"]["message"])


async def job(options: GlobalOptions, text: str) -> None:
    """Print one job and each of its tasks."""
    async with open_client(options) as desk:
        found = await desk.job((await desk.resolve(text)).job_id)
        if options.json:
            print_json(found)
        else:
            _print_job(found, desk.now())


def _print_job(job: Document, now: datetime) -> None:
    title, costs = (job["name"] or job["jobId"], "bold"), _CostColumn(job["tasks"])
    console().print(Text.assemble(title, "  ", state_text(job["status"])))
    print_pairs(
        [
            ("job", job["jobId"]),
            ("request", job["requestId"]),
            ("progress", _progress(job["states"])),
            ("created", formats.relative_time(formats.parse_time(job["createdAt"]), now)),
            ("took", formats.duration_text(_age(job, now))),
            # With what is under way or rests: the job itself knows only of what has ended.
            ("cost", formats.cost(sum(map(_cost, job["tasks"])))),
            ("round", str(job["round"]) if job["round"] > 1 else ""),
        ]
    )
    print()
    print_table_with_errors(
        [
            Column("TASK"),
            Column("STATE"),
            Column("ATTEMPTS", right=True),
            Column("EXIT", right=True),
            Column("STARTED"),
            Column("TOOK", right=True),
            *costs.column,
            Column("LAST EVENT"),
        ],
        [_task_row(task, costs, now) for task in job["tasks"]],
        [_error(task) for task in job["tasks"]],
    )


def _progress(counts: Mapping[str, int]) -> str:
    named = [f"{count} {state.replace('_', ' ')}" for state, count in counts.items() if count]
    return f"{', '.join(named)} of {formats.plural(sum(counts.values()), 'task')}"


def _task_row(task: Document, costs: _CostColumn, now: datetime) -> list[str | Text]:
    last: Mapping[str, Any] | None = task.get("lastEvent")
    told = ""
    if last is not None:
        when = formats.relative_time(formats.parse_time(last["at"]), now)
        told = f"{last['type'].removeprefix('Task ')}, {when}".lower()
    return [
        task["taskId"],
        state_text(task["status"]),
        _attempts(task),
        _exit(task),
        formats.relative_time(formats.parse_time(task["startedAt"]), now),
        _run_time(task, now),
        *costs.cell(task),
        told,
    ]
