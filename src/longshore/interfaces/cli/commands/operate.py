"""The commands that explain and change jobs and tasks: ``why``, ``cancel``, ``resume`` and more."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from longshore.core.health import Health
from longshore.core.ids import split_task_id
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused
from longshore.interfaces.cli.client import new_request_id, open_client
from longshore.interfaces.cli.commands.shared import Id, JobFile, RequestId, TaskId
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.options import GlobalOptions, command
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import (
    Column,
    print_answer,
    print_json,
    print_listing,
    print_pairs,
    styled,
)

if TYPE_CHECKING:
    from longshore.services import documents as d


@command(
    ("longshore why job-k3x_fetch", "what a task waits for, and how to continue"),
    ("longshore why k3x", "of a whole job"),
)
async def why(options: GlobalOptions, id_: Id) -> None:
    """Explain why a job or task does not run, down to the root cause.

    Possible causes are dependencies that have not completed, a failed task, a delay or backoff, a
    queue that is paused or has no worker, a review, and a worker that does not respond. Each is
    shown with its start, its end if it is known, and the command that resolves it.
    """
    async with open_client(options) as client:
        ref = await client.resolve(id_)
        answer = await client.app.why(ref.id)
        if options.json:
            print_json(answer)
            return
        shown_remedy: str | None = None
        for depth, reason in enumerate(answer.reasons):
            # The reasons of a job after the first are independent of each other.
            indent = "  " * (depth if ref.task_id else min(depth, 1))
            _print_reason(reason, indent, client.now())
            if reason.remedy is not None and reason.remedy != shown_remedy:
                print(f"{indent}  → {reason.remedy}")
                shown_remedy = reason.remedy


def _print_reason(reason: d.WhyReasonDocument, indent: str, now: datetime) -> None:
    print(f"{indent}{reason.text}")
    times = []
    if reason.since is not None:
        times.append(f"for {formats.duration_text(now - datetime.fromisoformat(reason.since))}")
    if reason.until is not None and (until := datetime.fromisoformat(reason.until)) > now:
        times.append(f"for another {formats.duration_text(until - now)}")
    if times:
        print(f"{indent}  {', '.join(times)}")


_HEALTH_STYLES = {
    Health.HEALTHY: "green",
    Health.WARNING: "yellow",
    Health.CRITICAL: "bold red",
    Health.OVERTIME: "bold red",
}


@command(
    ("longshore health", "of all running tasks; records the check and sends alerts"),
    ("longshore health k3x_fetch", "of one task; records nothing"),
)
async def health(
    options: GlobalOptions,
    task: Annotated[
        str | None, typer.Argument(metavar="ID", help="Task ID or unique prefix.")
    ] = None,
) -> int:
    """Check the health of running tasks: whether they are silent, or run longer than they may.

    Exits with 1 if a task is critical or over its time limit.
    """
    async with open_client(options) as client:
        if task is not None:
            checked = await client.app.task_health(await client.resolve_task(task))
            _print_task_health(options, checked)
            return _health_exit_code(checked.health)
        check = await client.app.run_health_check()
        print_listing(
            options,
            check,
            [
                Column("TASK"),
                Column("HEALTH"),
                Column("RUNNING FOR", right=True),
                Column("SILENT FOR", right=True),
                Column("LAST EVENT"),
                Column("WORKER"),
            ],
            [
                [
                    row.request_id,
                    styled(row.health, _HEALTH_STYLES[row.health]),
                    formats.duration_ms_text(row.elapsed),
                    formats.duration_ms_text(row.time_since_last_event),
                    row.last_event_type.removeprefix("Task ").lower(),
                    row.worker_id,
                ]
                for row in check.tasks
            ],
            empty="no task is running",
        )
        return _health_exit_code(*(row.health for row in check.tasks))


def _print_task_health(options: GlobalOptions, task: d.TaskHealthDocument) -> None:
    if options.json:
        print_json(task)
    elif task.health is None:
        state = task.status.replace("_", " ")
        print(f"{task.request_id} is {state}; only a running task has a health")
    else:
        last_event = (task.last_event_type or "").removeprefix("Task ").lower()
        print_pairs(
            [
                ("task", task.request_id),
                ("health", styled(task.health, _HEALTH_STYLES[task.health])),
                ("running for", formats.duration_ms_text(task.elapsed_ms)),
                ("silent for", f"{formats.duration_ms_text(task.silent_ms)} since {last_event}"),
                ("worker", task.worker_id or ""),
            ]
        )


def _health_exit_code(*healths: Health | None) -> int:
    urgent = any(health is not None and health.urgent for health in healths)
    return ExitCode.FAILED if urgent else ExitCode.OK


@command(
    ("longshore cancel k3x", "a whole job"),
    ("longshore cancel k3x_fetch --reason 'wrong day'", "one task"),
)
async def cancel(
    options: GlobalOptions,
    id_: Id,
    *,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Stored with the event."),
    ] = None,
) -> None:
    """Cancel a job with all its tasks that have not ended, or one task.

    Completed tasks stay completed. The worker stops a running task; if the task ends first, its
    outcome counts. Cancelled tasks can be resumed.

    Exits with 4 if the job or task had already ended.
    """
    async with open_client(options) as client:
        ref = await client.resolve(id_)
        document: d.JobDocument | d.TaskDocument
        if ref.task_id is None:
            document = await client.app.cancel_job(ref.job_id, reason=reason)
        else:
            document = await client.app.cancel_task(ref.task_id, reason=reason)
        state: JobState | TaskState = document.status
        print_answer(
            options, document, f"{ref.id} is {'' if state.terminal else 'being '}cancelled"
        )


@command(
    ("longshore resume k3x", "all failed and cancelled tasks"),
    ("longshore resume k3x_fetch", "one task"),
)
async def resume(options: GlobalOptions, id_: Id) -> None:
    """Run failed and cancelled tasks again; completed tasks are not run again.

    The tasks start a new round with all their attempts; tasks that depend on them run after them.

    Exits with 4 if no task can be resumed.
    """
    async with open_client(options) as client:
        ref = await client.resolve(id_)
        keys = [split_task_id(ref.task_id)[1]] if ref.task_id else None
        resumed = await client.app.resume(ref.job_id, keys)
        if not resumed.tasks:
            raise CommandRefused(ref.id, next(iter(resumed.refused.values())))
        tasks = formats.plural(len(resumed.tasks), "task")
        refused = [f"\n  not {key}: {reason}" for key, reason in resumed.refused.items()]
        print_answer(
            options,
            resumed,
            f"{resumed.job_id}: {tasks} resumed, round {resumed.round}{''.join(refused)}",
        )


@command(("longshore approve k3x_draft", "tasks that depend on it can run"), remote=True)
async def approve(options: GlobalOptions, task: TaskId) -> None:
    """Approve the result of a task in review.

    Exits with 4 if the task is not in review.
    """
    async with open_client(options) as client:
        task_id = await client.resolve_task(task)
        print_answer(options, await client.app.approve(task_id), f"{task_id} is completed")


@command(
    ("longshore revise k3x_draft 'half as long, please'", "a new attempt gets the feedback"),
)
async def revise(
    options: GlobalOptions,
    task: TaskId,
    feedback: Annotated[
        str,
        typer.Argument(metavar="FEEDBACK", help="What to improve."),
    ],
) -> None:
    """Reject the result of a task in review: a new attempt gets the result and the feedback.

    Exits with 4 if the task is not in review, or was revised too often.
    """
    async with open_client(options) as client:
        task_id = await client.resolve_task(task)
        revised = await client.app.revise(task_id, feedback)
        print_answer(options, revised, f"{task_id} runs again, revision {revised.revision}")


@command(
    ("longshore add k3x more.yaml", "a file with a list of tasks"),
    ("longshore add k3x more.yaml --request-id part-2", "safe to repeat"),
)
async def add(
    options: GlobalOptions,
    job: Annotated[str, typer.Argument(metavar="JOB", help="Job ID or unique prefix.")],
    file: JobFile,
    *,
    request_id: RequestId = None,
) -> None:
    """Add tasks to a job that has not ended.

    They may depend on each other and on tasks of the job. They get the results of completed tasks.

    Exits with 4 if the job has completed or was cancelled.
    """
    from longshore.interfaces.cli.commands.submit import read_document

    document = read_document(file)
    async with open_client(options) as client:
        job_id = (await client.resolve(job)).job_id
        added = await client.app.add_tasks(
            job_id, document, request_id=request_id or new_request_id()
        )
        tasks = formats.plural(len(added.added_tasks), "task")
        repeated = "" if added.created else " (already added by this request)"
        print_answer(
            options, added, f"{job_id}: {tasks} added, {added.total_tasks} in total{repeated}"
        )
