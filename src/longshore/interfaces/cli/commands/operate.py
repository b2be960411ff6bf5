"""The commands that explain and change jobs and tasks: ``why``, ``cancel``, ``resume`` and more."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from longshore.core.health import Health
from longshore.core.ids import split_task_id
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import CommandRefused
from longshore.interfaces.cli.client import ApiClient, client_command
from longshore.interfaces.cli.commands.shared import Id, JobFile, RequestId, TaskId
from longshore.interfaces.cli.exit_codes import ExitCode
from longshore.interfaces.cli.options import GlobalOptions, argument, option
from longshore.interfaces.cli.render import formats, screen

if TYPE_CHECKING:
    from longshore.services import documents as d


@client_command(
    ("longshore why job-k3x_fetch", "what a task waits for, and how to continue"),
    ("longshore why k3x", "the whole job"),
)
async def why(client: ApiClient, id_: Id) -> None:
    """Explain why a job or task does not run, down to the root cause.

    Possible causes are dependencies that have not completed, a failed task, a delay or backoff, a
    queue that is paused or has no worker, a review, and a worker that does not respond. Each is
    shown with its start, its end if it is known, and the command that resolves it.
    """
    ref = await client.resolve(id_)
    answer = await client.app.why(ref.id)
    if client.options.json:
        screen.print_json(answer)
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
    times = []
    if reason.since is not None:
        times.append(f"for {formats.duration_text(now - datetime.fromisoformat(reason.since))}")
    if reason.until is not None and (until := datetime.fromisoformat(reason.until)) > now:
        times.append(f"for another {formats.duration_text(until - now)}")
    shown = f" ({', '.join(times)})" if times else ""
    print(f"{indent}{reason.text}{shown}")


_HEALTH_STYLES = {
    Health.HEALTHY: "green",
    Health.WARNING: "yellow",
    Health.CRITICAL: "bold red",
    Health.OVERTIME: "bold red",
}


@client_command(
    ("longshore health", "all running tasks; records an event and sends alerts"),
    ("longshore health k3x_fetch", "one task; only prints"),
)
async def health(
    client: ApiClient,
    task: Annotated[str | None, argument("ID", "Task ID or unique prefix.")] = None,
) -> int:
    """Check the health of running tasks: whether they are silent, or run longer than they may.

    Without ID, checks all running tasks, records an event and sends alerts. With ID, only prints.

    Exits with 1 if a task is critical or over its time limit.
    """
    healths: list[Health | None]
    if task is not None:
        checked = await client.app.task_health(await client.resolve_task(task))
        _print_task_health(client.options, checked)
        healths = [checked.health]
    else:
        check = await client.app.run_health_check()
        client.options.print_listing(
            check,
            check.tasks,
            lambda row: {
                "TASK": row.request_id,
                "HEALTH": screen.styled(row.health, _HEALTH_STYLES[row.health]),
                "RUNNING FOR": formats.duration_ms_text(row.elapsed),
                "SILENT FOR": formats.duration_ms_text(row.time_since_last_event),
                "LAST EVENT": row.last_event_type.removeprefix("Task ").lower(),
                "WORKER": row.worker_id,
            },
            empty="no task is running",
        )
        healths = [row.health for row in check.tasks]
    urgent = any(health is not None and health.urgent for health in healths)
    return ExitCode.FAILED if urgent else ExitCode.OK


def _print_task_health(options: GlobalOptions, task: d.TaskHealthDocument) -> None:
    if options.json:
        screen.print_json(task)
    elif task.health is None:
        state = task.status.replace("_", " ")
        print(f"{task.request_id} is {state}; health applies to running tasks only")
    else:
        last_event = (task.last_event_type or "").removeprefix("Task ").lower()
        screen.print_pairs(
            task=task.request_id,
            health=screen.styled(task.health, _HEALTH_STYLES[task.health]),
            running_for=formats.duration_ms_text(task.elapsed_ms),
            silent_for=f"{formats.duration_ms_text(task.silent_ms)} since {last_event}",
            worker=task.worker_id or "",
        )


@client_command(
    ("longshore cancel k3x", "a whole job"),
    ("longshore cancel k3x_fetch --reason 'wrong day'", "one task"),
)
async def cancel(
    client: ApiClient,
    id_: Id,
    *,
    reason: Annotated[str | None, option("TEXT", "Stored with the event.")] = None,
) -> None:
    """Cancel a job with all its tasks that have not ended, or one task.

    Completed and failed tasks stay as they are. The worker stops a running task; if the task ends
    first, its outcome counts. Cancelled tasks can be resumed.

    Exits with 4 if the job is completed or cancelled, or the task completed, failed or cancelled.
    """
    ref = await client.resolve(id_)
    document: d.JobDocument | d.TaskDocument
    if ref.task_id is None:
        document = await client.app.cancel_job(ref.job_id, reason=reason)
    else:
        document = await client.app.cancel_task(ref.task_id, reason=reason)
    state: JobState | TaskState = document.status
    being = "" if state.terminal else "being "
    client.options.print_answer(document, f"{ref.id} is {being}cancelled")


@client_command(
    ("longshore resume k3x", "all failed and cancelled tasks"),
    ("longshore resume k3x_fetch", "one task"),
)
async def resume(client: ApiClient, id_: Id) -> None:
    """Run failed and cancelled tasks again; completed tasks are not run again.

    The tasks start a new round with all their attempts; tasks that depend on them run after them.

    Exits with 4 if no task can be resumed.
    """
    ref = await client.resolve(id_)
    keys = [split_task_id(ref.task_id)[1]] if ref.task_id else None
    resumed = await client.app.resume(ref.job_id, keys)
    if not resumed.tasks:
        raise CommandRefused(ref.id, next(iter(resumed.refused.values())))
    tasks = formats.plural(len(resumed.tasks), "task")
    refused = [f"\n  not {key}: {reason}" for key, reason in resumed.refused.items()]
    text = f"{resumed.job_id}: {tasks} resumed, round {resumed.round}{''.join(refused)}"
    client.options.print_answer(resumed, text)


@client_command(("longshore approve k3x_draft", "tasks that depend on it can run"))
async def approve(client: ApiClient, task: TaskId) -> None:
    """Approve the result of a task in review; approving it again changes nothing.

    Exits with 4 if the task is not in review.
    """
    task_id = await client.resolve_task(task)
    client.options.print_answer(await client.app.approve(task_id), f"{task_id} is completed")


@client_command(
    ("longshore revise k3x_draft 'half as long, please'", "a new attempt with feedback"),
)
async def revise(
    client: ApiClient,
    task: TaskId,
    feedback: Annotated[str, argument("FEEDBACK", "What to improve.")],
) -> None:
    """Reject the result of a task in review and run the task again.

    An agent continues its conversation with the feedback. A Python task finds the feedback and the
    rejected result in `longshore.current()`, a command in the files that
    `LONGSHORE_ATTEMPT_FEEDBACK` and `LONGSHORE_ATTEMPT_PREVIOUS_OUTPUT` name.

    Exits with 4 if the task is not in review, or was revised too often.
    """
    task_id = await client.resolve_task(task)
    revised = await client.app.revise(task_id, feedback)
    client.options.print_answer(revised, f"{task_id} runs again, revision {revised.revision}")


@client_command(
    ("longshore add k3x more.yaml", "a file with `tasks:` and nothing else"),
    ("longshore add k3x more.yaml --request-id part-2", "safe to repeat"),
)
async def add(
    client: ApiClient,
    job: Annotated[str, argument("JOB", "Job ID or unique prefix.")],
    file: JobFile,
    *,
    request_id: RequestId = None,
) -> None:
    """Add tasks to a running or failed job.

    They may depend on each other and on tasks of the job. They get the results of completed tasks.

    Exits with 4 if the job has completed or was cancelled.
    """
    from longshore.interfaces.document_files import read_document

    document = read_document(file)
    job_id = (await client.resolve(job)).job_id
    added = await client.app.add_tasks(
        job_id, document, request_id=request_id or secrets.token_hex(8)
    )
    tasks = formats.plural(len(added.added_tasks), "task")
    repeated = "" if added.created else " (already added by this request)"
    text = f"{job_id}: {tasks} added, {added.total_tasks} in total{repeated}"
    client.options.print_answer(added, text)
