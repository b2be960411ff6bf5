"""The bodies of ``longshore jobs``, ``job`` and ``tasks``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from rich.text import Text

from longshore.core.states import JobState, TaskState
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Document
from longshore.interfaces.cli.exits import say
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import (
    Column,
    console,
    print_json,
    print_pairs,
    print_table,
    print_table_with_errors,
    state_text,
)


async def jobs(here: Here, state: JobState | None, limit: int, cursor: str | None) -> None:
    """Print a page of jobs."""
    async with desk_for(here) as desk:
        page = await desk.jobs(state=state, limit=limit, cursor=cursor)
        if here.json:
            print_json(page)
            return
        if not page["jobs"]:
            say(f"no jobs{f' are {state}' if state else ' yet; try `longshore run -- echo hello`'}")
            return
        now, costs = desk.now(), _Costs(page["jobs"])
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
            [[*_job_row(job, now), *costs.of(job)] for job in page["jobs"]],
        )
        _tell_of_more(page["cursor"])


class _Costs:
    """The column COST of jobs or tasks: it is there only if any of them cost something."""

    def __init__(self, shown: Sequence[Document]) -> None:
        there = any(words.cost(_cost(document)) for document in shown)
        self.column = [Column("COST", right=True)] if there else []

    def of(self, document: Document) -> list[str]:
        """The cell of one of them."""
        return [words.cost(_cost(document))] if self.column else []


def _cost(document: Document) -> float:
    return float(document["usage"]["costUsd"])


def _job_row(job: Document, now: datetime) -> list[str | Text]:
    return [
        job["jobId"],
        job["name"] or "",
        state_text(job["status"]),
        f"{job['progress']['completed']}/{job['totalTasks']}",
        words.ago(words.moment(job["createdAt"]), now),
        words.took(_age(job, now)),
    ]


def _age(job: Document, now: datetime) -> timedelta:
    until = words.moment(job["finishedAt"]) or now
    return max(until - datetime.fromisoformat(job["createdAt"]), timedelta())


def _tell_of_more(cursor: str | None) -> None:
    if cursor is not None:
        say(f"there are more: --cursor {cursor}")


async def tasks(
    here: Here, job: str | None, state: TaskState | None, limit: int, cursor: str | None
) -> None:
    """Print a page of tasks."""
    async with desk_for(here) as desk:
        job_id = (await desk.find(job)).job_id if job else None
        page = await desk.tasks(job_id=job_id, state=state, limit=limit, cursor=cursor)
        if here.json:
            print_json(page)
            return
        if not page["tasks"]:
            say(f"no tasks{f' are {state.value}' if state else ''}")
            return
        _print_tasks(page["tasks"], desk.now())
        _tell_of_more(page["cursor"])


def _print_tasks(tasks: Sequence[Document], now: datetime) -> None:
    costs = _Costs(tasks)
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
        [[*_task_cells(task, now), *costs.of(task)] for task in tasks],
        [_error(task) for task in tasks],
    )


def _task_cells(task: Document, now: datetime) -> list[str | Text]:
    return [
        task["requestId"],
        state_text(task["status"]),
        _attempts(task),
        _exit(task),
        words.ago(words.moment(task["createdAt"]), now),
        _ran(task, now),
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


def _ran(task: Document, now: datetime) -> str:
    begun = words.moment(task["startedAt"])
    if task["workerId"] is not None and begun is not None:
        return words.took(max(now - begun, timedelta()))
    return words.lasted(task["durationMs"])


def _error(task: Document) -> str:
    if task["parked"] is not None:
        return str(task["parked"]["reason"])
    # What an earlier attempt failed with is no longer of interest once the task has completed.
    if task["error"] is None or task["status"] == TaskState.COMPLETED.value:
        return ""
    return str(task["error"]["message"])


async def job(here: Here, text: str) -> None:
    """Print one job and each of its tasks."""
    async with desk_for(here) as desk:
        found = await desk.job((await desk.find(text)).job_id)
        if here.json:
            print_json(found)
        else:
            _print_job(found, desk.now())


def _print_job(job: Document, now: datetime) -> None:
    title, costs = (job["name"] or job["jobId"], "bold"), _Costs(job["tasks"])
    console().print(Text.assemble(title, "  ", state_text(job["status"])))
    print_pairs(
        [
            ("job", job["jobId"]),
            ("request", job["requestId"]),
            ("progress", _progress(job["states"])),
            ("created", words.ago(words.moment(job["createdAt"]), now)),
            ("took", words.took(_age(job, now))),
            # With what is under way or rests: the job itself knows only of what has ended.
            ("cost", words.cost(sum(map(_cost, job["tasks"])))),
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
        [_task_line(task, costs, now) for task in job["tasks"]],
        [_error(task) for task in job["tasks"]],
    )


def _progress(counts: Mapping[str, int]) -> str:
    named = [f"{count} {state.replace('_', ' ')}" for state, count in counts.items() if count]
    return f"{', '.join(named)} of {words.number_of(sum(counts.values()), 'task')}"


def _task_line(task: Document, costs: _Costs, now: datetime) -> list[str | Text]:
    last: Mapping[str, Any] | None = task.get("lastEvent")
    told = ""
    if last is not None:
        when = words.ago(words.moment(last["at"]), now)
        told = f"{last['type'].removeprefix('Task ')}, {when}".lower()
    return [
        task["taskId"],
        state_text(task["status"]),
        _attempts(task),
        _exit(task),
        words.ago(words.moment(task["startedAt"]), now),
        _ran(task, now),
        *costs.of(task),
        told,
    ]
