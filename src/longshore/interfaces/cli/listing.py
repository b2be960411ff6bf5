"""The bodies of ``longshore jobs``, ``job`` and ``tasks``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rich.text import Text

from longshore.core.events.event import Event
from longshore.core.rows import JobRow, TaskRow
from longshore.core.states import JobState, TaskState
from longshore.interfaces import views
from longshore.interfaces.cli import naming, words
from longshore.interfaces.cli.exits import Missing, say
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
from longshore.interfaces.cli.session import Session, existing, settings_for
from longshore.ports.ledger import Ledger

_PAGE = 500


async def jobs(here: Here, state: JobState | None, limit: int, cursor: str | None) -> None:
    """Print a page of jobs."""
    async with existing(settings_for(here)) as session:
        tenant, ledger = session.settings.tenant, session.backend.ledger
        page = await ledger.list_jobs(tenant, state=state, limit=limit, cursor=cursor)
        if here.json:
            documents = [await _job_document(ledger, job) for job in page.items]
            print_json({"jobs": documents, "cursor": page.cursor})
            return
        if not page.items:
            say(f"no jobs{f' are {state}' if state else ' yet; try `longshore run -- echo hello`'}")
            return
        now = session.backend.clock.now()
        print_table(
            [
                Column("JOB"),
                Column("NAME", flexible=True),
                Column("STATE"),
                Column("TASKS", right=True),
                Column("CREATED"),
                Column("TOOK", right=True),
            ],
            [_job_row(job, now) for job in page.items],
        )
        _tell_of_more(page.cursor)


async def _job_document(ledger: Ledger, job: JobRow) -> dict[str, object]:
    tasks: Sequence[TaskRow] = ()
    if job.total == 1:
        tasks = (await ledger.list_tasks(job.spec.tenant, job_id=job.id, limit=1)).items
    return views.job_document(job, exit_code=views.job_exit_code(job, tasks))


def _job_row(job: JobRow, now: datetime) -> list[str | Text]:
    return [
        job.id,
        job.spec.name or "",
        state_text(job.state),
        f"{len(job.completed)}/{job.total}",
        words.ago(job.spec.created_at, now),
        words.took(_age(job, now)),
    ]


def _age(job: JobRow, now: datetime) -> timedelta:
    return max((job.finished_at or now) - job.spec.created_at, timedelta())


def _tell_of_more(cursor: str | None) -> None:
    if cursor is not None:
        say(f"there are more: --cursor {cursor}")


async def tasks(
    here: Here, job: str | None, state: TaskState | None, limit: int, cursor: str | None
) -> None:
    """Print a page of tasks."""
    async with existing(settings_for(here)) as session:
        tenant, ledger = session.settings.tenant, session.backend.ledger
        job_id = await naming.find_job(ledger, tenant, job) if job else None
        page = await ledger.list_tasks(
            tenant, job_id=job_id, state=state, limit=limit, cursor=cursor
        )
        if here.json:
            documents = [views.task_document(task) for task in page.items]
            print_json({"tasks": documents, "cursor": page.cursor})
            return
        if not page.items:
            say(f"no tasks{f' are {state.value}' if state else ''}")
            return
        _print_tasks(page.items, session.backend.clock.now())
        _tell_of_more(page.cursor)


def _print_tasks(tasks: Sequence[TaskRow], now: datetime) -> None:
    print_table_with_errors(
        [
            Column("TASK"),
            Column("STATE"),
            Column("ATTEMPTS", right=True),
            Column("EXIT", right=True),
            Column("CREATED"),
            Column("TOOK", right=True),
        ],
        [_task_cells(task, now) for task in tasks],
        [_error(task) for task in tasks],
    )


def _task_cells(task: TaskRow, now: datetime) -> list[str | Text]:
    return [
        task.id,
        state_text(task.state),
        _attempts(task),
        _exit(task),
        words.ago(task.spec.created_at, now),
        words.took(_ran(task, now)),
    ]


def _attempts(task: TaskRow) -> str:
    return f"{task.attempt}/{task.spec.retry.max_attempts}" if task.attempt else ""


def _exit(task: TaskRow) -> str:
    if task.exit_code is not None:
        return str(task.exit_code)
    return task.failure.signal or "" if task.failure and not task.lease else ""


def _ran(task: TaskRow, now: datetime) -> timedelta | None:
    if task.lease is not None:
        return max(now - task.lease.acquired_at, timedelta())
    return task.ran_for


def _error(task: TaskRow) -> str:
    # What an earlier attempt failed with is no longer of interest once the task has completed.
    if task.failure is None or task.state is TaskState.COMPLETED:
        return ""
    return task.failure.message


async def job(here: Here, text: str) -> None:
    """Print one job and each of its tasks."""
    async with existing(settings_for(here)) as session:
        ledger = session.backend.ledger
        job_id = await naming.find_job(ledger, session.settings.tenant, text)
        found = await ledger.job(job_id)
        if found is None:
            raise Missing(f"the job {job_id} is gone", "`longshore jobs` lists what there is")
        rows = await all_tasks(ledger, found)
        events = [
            await session.backend.events.latest(found.spec.tenant, f"TASK#{row.id}") for row in rows
        ]
        if here.json:
            _print_job_json(found, rows, events)
        else:
            _print_job(session, found, rows, events)


async def all_tasks(ledger: Ledger, job: JobRow) -> list[TaskRow]:
    """Every task of a job, by number."""
    found: list[TaskRow] = []
    cursor: str | None = None
    while True:
        page = await ledger.list_tasks(job.spec.tenant, job_id=job.id, limit=_PAGE, cursor=cursor)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


def _print_job_json(job: JobRow, rows: list[TaskRow], events: list[Event | None]) -> None:
    document = views.job_document(job, exit_code=views.job_exit_code(job, rows))
    document["states"] = views.counts_of({row.spec.key: row.state for row in rows})
    document["tasks"] = [
        views.task_document(row, last_event=event) for row, event in zip(rows, events, strict=True)
    ]
    print_json(document)


def _print_job(
    session: Session, job: JobRow, rows: list[TaskRow], events: list[Event | None]
) -> None:
    now = session.backend.clock.now()
    console().print(Text.assemble((job.spec.name or job.id, "bold"), "  ", state_text(job.state)))
    print_pairs(
        [
            ("job", job.id),
            ("request", job.spec.request_id),
            ("progress", _progress(rows)),
            ("created", words.ago(job.spec.created_at, now)),
            ("took", words.took(_age(job, now))),
            ("round", str(job.round) if job.round > 1 else ""),
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
            Column("LAST EVENT"),
        ],
        [_task_line(row, event, now) for row, event in zip(rows, events, strict=True)],
        [_error(row) for row in rows],
    )


def _progress(rows: list[TaskRow]) -> str:
    counts = views.counts_of({row.spec.key: row.state for row in rows})
    named = [f"{count} {state.replace('_', ' ')}" for state, count in counts.items() if count]
    return f"{', '.join(named)} of {words.number_of(len(rows), 'task')}"


def _task_line(row: TaskRow, event: Event | None, now: datetime) -> list[str | Text]:
    last = f"{event.type.removeprefix('Task ')}, {words.ago(event.at, now)}" if event else ""
    return [
        row.spec.key,
        state_text(row.state),
        _attempts(row),
        _exit(row),
        words.ago(row.started_at, now),
        words.took(_ran(row, now)),
        last.lower(),
    ]
