"""The commands that show jobs, tasks, events, output and traces.

A trace is a file that an attempt of an agent task stores when it ends. If there is none, ``trace``
says why: the task is no agent task, the attempt runs, or the trace was not stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longshore.core.definitions.definition import RunnerKind
from longshore.core.ids import split_task_id
from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import NotFound, UsageError
from longshore.interfaces.cli.client import ApiClient, EntityRef, client_command, id_lines
from longshore.interfaces.cli.commands.shared import Attempt, Cursor, Follow, Id, Limit
from longshore.interfaces.cli.exit_codes import MissingResource, print_stderr
from longshore.interfaces.cli.options import flag, option
from longshore.interfaces.cli.render import formats, screen

if TYPE_CHECKING:
    from rich.text import Text

    from longshore.services import documents as d

_UNCOUNTED_STATES = (TaskState.PROCESSING, TaskState.IN_REVIEW, TaskState.COMPLETED)
"""States of a task whose latest attempt is not, or not yet, among the used ones."""
_TYPE_WIDTH = 23
_KEY_WIDTH = 24
_SIGNS = {"stdout": "|", "stderr": "!", "log": ":"}
_PALETTE = (36, 35, 34, 32, 33)
_STDERR_COLOUR = 33


@client_command(
    ("longshore jobs", "the newest jobs"),
    ("longshore jobs --state failed", "only failed jobs"),
    ("longshore jobs -o json | jq '.jobs[].jobId'", "for a script"),
)
async def jobs(
    client: ApiClient,
    *,
    state: Annotated[JobState | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List jobs, newest first."""
    page = await client.app.list_jobs(state=state, limit=limit, cursor=cursor)
    none = f"no {state} jobs" if state else "no jobs yet; try `longshore run -- echo hello`"
    client.options.print_listing(
        page,
        page.jobs,
        lambda job: {
            "JOB": job.job_id,
            "NAME": job.name or "",
            "STATE": screen.state_text(job.status),
            "TASKS": f"{job.progress.completed}/{job.total_tasks}",
            "CREATED": client.ago(job.created_at),
            "DURATION": formats.duration_text(_age(job, client.now())),
            "COST": formats.cost(job.usage.cost_usd),
        },
        empty=none,
        cursor=page.cursor,
    )


def _age(job: d.JobDocument, now: datetime) -> timedelta:
    end = datetime.fromisoformat(job.finished_at) if job.finished_at else now
    return max(end - datetime.fromisoformat(job.created_at), timedelta())


@client_command(
    ("longshore tasks --state processing", "the running tasks"),
    ("longshore tasks --job job-k3x", "the tasks of one job"),
)
async def tasks(
    client: ApiClient,
    *,
    job: Annotated[str | None, option("ID", "Only tasks of this job.")] = None,
    state: Annotated[TaskState | None, typer.Option(help="Only tasks in this state.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List tasks, newest first, or the tasks of one job in the job's order."""
    job_id = (await client.resolve(job)).job_id if job else None
    page = await client.app.list_tasks(job_id=job_id, state=state, limit=limit, cursor=cursor)
    now = client.now()
    client.options.print_listing(
        page,
        page.tasks,
        lambda task: _task_row(task, task.request_id, "CREATED", task.created_at, now),
        empty=f"no {state.replace('_', ' ')} tasks" if state else "no tasks",
        error=_error,
        cursor=page.cursor,
    )


@client_command(
    ("longshore job job-k3x", "by ID prefix"),
    ("longshore job job-k3x -o json", "for a script"),
)
async def job(client: ApiClient, job_id: Id) -> None:
    """Show a job: its progress, and each task with its state, attempts, times and error.

    The ID of a task shows the whole job that contains it.
    """
    document = await client.get_job((await client.resolve(job_id)).job_id)
    if client.options.json:
        screen.print_json(document)
    else:
        _print_job(document, client.now())


def _print_job(job: d.JobDetailDocument, now: datetime) -> None:
    screen.print_title(job.name or job.job_id, screen.state_text(job.status))
    counts = [f"{count} {state.replace('_', ' ')}" for state, count in job.states.items() if count]
    screen.print_pairs(
        job=job.job_id if job.name else "",
        request=job.request_id,
        progress=f"{', '.join(counts)} of {formats.plural(job.total_tasks, 'task')}",
        created=formats.relative_time(job.created_at, now),
        duration=formats.duration_text(_age(job, now)),
        # With tasks that have not ended: the usage of the job has only those that have.
        cost=formats.cost(sum(task.usage.cost_usd for task in job.tasks)),
        round=str(job.round) if job.round > 1 else "",
    )
    print()
    screen.print_table(
        [
            {
                **_task_row(task, task.task_id, "STARTED", task.started_at, now),
                "LAST EVENT": _last_event(task, now),
            }
            for task in job.tasks
        ],
        [_error(task) for task in job.tasks],
    )


def _task_row(
    task: d.TaskDocument, name: str, time_heading: str, time: str | None, now: datetime
) -> dict[str, str | Text]:
    used = task.attempts_used + (task.status in _UNCOUNTED_STATES)
    attempts = f"{used}/{task.max_attempts}" if task.attempt else ""
    if task.exit_code is not None:
        exit_text = str(task.exit_code)
    else:
        exit_text = (task.error.signal or "") if task.error and not task.worker_id else ""
    duration = formats.duration_ms_text(task.duration_ms)
    if task.worker_id is not None and task.started_at is not None:
        elapsed = now - datetime.fromisoformat(task.started_at)
        duration = formats.duration_text(max(elapsed, timedelta()))
    return {
        "TASK": name,
        "STATE": screen.state_text(task.status),
        "ATTEMPTS": attempts,
        "EXIT": exit_text,
        time_heading: formats.relative_time(time, now),
        "DURATION": duration,
        "COST": formats.cost(task.usage.cost_usd),
    }


def _last_event(task: d.TaskDocument, now: datetime) -> str:
    if task.last_event is None:
        return ""
    when = formats.relative_time(task.last_event.at, now)
    return f"{task.last_event.type.removeprefix('Task ')}, {when}".lower()


def _error(task: d.TaskDocument) -> str:
    if task.parked is not None:
        return task.parked.reason
    # The error of an earlier attempt does not matter any more once the task has completed.
    return task.error.message if task.error and task.status is not TaskState.COMPLETED else ""


@client_command(
    ("longshore events job-k3x", "the events of the job itself"),
    ("longshore events job-k3x --all -f", "job and task events, as they happen"),
    ("longshore events job-k3x_fetch -o json", "the complete events of a task"),
)
async def events(
    client: ApiClient,
    entity: Id,
    *,
    include_tasks: Annotated[
        bool, flag("For a job: include the events of its tasks.", "--all")
    ] = False,
    follow: Follow = False,
) -> None:
    """Show the events of a job or task.

    With -o json, the output is one array of events in the wire format; with -f as well, one event
    per line.
    """
    ref = await client.resolve(entity)
    include_tasks = include_tasks and ref.task_id is None
    stream = client.events(ref, include_tasks=include_tasks, follow=follow)
    if client.options.json:
        items = screen.JsonItems(lines=follow)
        async for event in stream:
            items.add(event)
        items.end()
        return
    keys = await client.task_keys(ref.job_id) if include_tasks else []
    await _print_events(stream, keys, client.now)


async def _print_events(
    stream: AsyncIterator[d.EventDocument], keys: list[str], now: Callable[[], datetime]
) -> None:
    """Print events, one line each; with the task's key if there are keys."""
    from longshore.interfaces.cli.render.event_text import details_of, parse_event, style_of

    terminal = screen.console()
    # At least as wide as the heading TASK.
    width = min(max(4, *map(len, keys)), _KEY_WIDTH) if keys else 0
    task_heading = [f"{'TASK':{width}}"] if width else []
    headings = [f"{'TIME':12}", "SEQ", *task_heading, f"{'EVENT':{_TYPE_WIDTH}}", "DETAILS"]
    terminal.print(screen.styled("  ".join(headings), "bold"))
    async for document in stream:
        event = parse_event(document)
        key = split_task_id(event.entity_id)[1]
        cells = [
            screen.styled(formats.clock_time_of(event.at, now()), "dim"),
            screen.styled(f"{event.sequence:3}", ""),
            *([screen.styled(f"{key:{width}}", "")] if width else []),
            screen.styled(f"{event.type:{_TYPE_WIDTH}}", style_of(event)),
            screen.styled(details_of(event, now()), ""),
        ]
        line = screen.styled("  ", "").join(cells)
        line.rstrip()
        terminal.print(line, soft_wrap=True)


@client_command(
    ("longshore logs job-k3x", "the output of all tasks of a job"),
    ("longshore logs job-k3x_fetch -f", "of one task, until it has ended"),
    ("longshore logs job-k3x_fetch --attempt 1", "of its first attempt only"),
)
async def logs(
    client: ApiClient, entity: Id, *, follow: Follow = False, attempt: Attempt = None
) -> None:
    """Show the output of a job or task.

    The output of a task goes to stdout and stderr as the task wrote it. The lines of a job begin
    with the task's name and | for stdout or ! for stderr, in the order in which they were printed.
    """
    ref = await client.resolve(entity)
    writer: screen.JsonItems | PrefixedOutput | RawOutput
    if client.options.json:
        writer = screen.JsonItems(lines=follow)
    elif ref.task_id is None:
        writer = PrefixedOutput(await client.task_keys(ref.job_id))
    else:
        writer = RawOutput()
    empty = True
    async for chunk in client.output(ref, follow=follow, attempt=attempt):
        writer.add(chunk)
        empty = False
    writer.end()
    if empty and not client.options.json:
        of_attempt = f" in attempt {attempt}" if attempt else ""
        print_stderr(f"no output{of_attempt}")


def lost_text(chunk: d.OutputChunk | d.OutputChunkDocument) -> str:
    """The message in place of output that could not be stored."""
    return f"longshore: {chunk.end - chunk.sequence + 1} output chunks could not be saved"


class RawOutput:
    """The output of one task: the same bytes, stdout to stdout and stderr to stderr."""

    def __init__(self) -> None:
        self._attempt = 0
        self._coloured = screen.has_colours(stderr=True)

    def add(self, chunk: d.OutputChunkDocument) -> None:
        if self._attempt and chunk.attempt != self._attempt:
            sys.stdout.flush()
            print_stderr(f"longshore: attempt {chunk.attempt}")
        self._attempt = chunk.attempt
        write_chunks([chunk], coloured=self._coloured)

    def end(self) -> None:
        """Nothing was held back."""


def write_chunks(
    chunks: Iterable[d.OutputChunk | d.OutputChunkDocument], *, coloured: bool = False
) -> None:
    """Write chunks to the streams that they were printed to."""
    for chunk in chunks:
        if chunk.stream == "lost":
            print_stderr(lost_text(chunk))
            continue
        is_error = chunk.stream == "stderr"
        file = sys.stderr if is_error else sys.stdout
        colours = b"\x1b[%dm%b\x1b[0m" % (_STDERR_COLOUR, chunk.data)
        file.buffer.write(colours if is_error and coloured else chunk.data)
        file.buffer.flush()


class PrefixedOutput:
    """The output of a job: whole lines after the key of their task."""

    def __init__(self, keys: list[str]) -> None:
        self._width = min(max((len(key) for key in keys), default=0), _KEY_WIDTH)
        self._partial_lines: dict[tuple[str, str], bytes] = {}
        self._coloured = screen.has_colours()
        self._colours: dict[str, int] = {}

    def add(self, chunk: d.OutputChunkDocument) -> None:
        if chunk.stream == "lost":
            self._print(chunk.task_id, "log", lost_text(chunk).encode())
            return
        source = (chunk.task_id, chunk.stream)
        *lines, rest = (self._partial_lines.pop(source, b"") + chunk.data).split(b"\n")
        for line in lines:
            self._print(*source, line)
        if rest:
            self._partial_lines[source] = rest
        sys.stdout.buffer.flush()

    def _print(self, key: str, stream: str, line: bytes) -> None:
        prefix = f"{key:{self._width}} {_SIGNS[stream]} "
        if self._coloured:
            colour = self._colours.setdefault(key, _PALETTE[len(self._colours) % len(_PALETTE)])
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        sys.stdout.buffer.write(prefix.encode() + line.rstrip(b"\r") + b"\n")

    def end(self) -> None:
        for (key, stream), rest in self._partial_lines.items():
            self._print(key, stream, rest)
        sys.stdout.buffer.flush()


@client_command(
    ("longshore trace job-k3x", "of a job with one agent task"),
    ("longshore trace job-k3x_review --attempt 1", "of the first attempt of a task"),
    ("longshore trace job-k3x -o json", "the whole trace, for a script"),
)
async def trace(client: ApiClient, entity: Id, *, attempt: Attempt = None) -> None:
    """Show what an agent did: its steps, turns and tools, with durations and costs.

    An attempt stores its trace when it ends; the last attempt is shown unless one is named. While
    an attempt runs, use `longshore logs -f`. Times count from the start of the step.
    """
    task = await _select_task(client, await client.resolve(entity))
    id_, number = task.request_id, attempt or task.attempt
    if not task.attempt:
        hint = f"`longshore why {id_}` says what it waits for"
        raise MissingResource(f"{id_} has not started yet", hint)
    if number > task.attempt:
        hint = f"its last attempt is {task.attempt}"
        raise MissingResource(f"{id_} has no attempt {number}", hint)
    # Other commands need neither.
    from longshore.core.agents.trace import TRACE_VERSION
    from longshore.interfaces.cli.render.trace import print_trace

    content = await _read_trace(client, task, number)
    if client.options.json:
        screen.print_json({"requestId": id_, "attempt": number, **content})
        return
    if content.get("version") != TRACE_VERSION:
        problem = f"the trace of attempt {number} of {id_} has the format of another version"
        raise MissingResource(f"{problem} of Longshore", "-o json prints it as it is")
    print_trace(content, task, number)


async def _select_task(client: ApiClient, ref: EntityRef) -> d.TaskDocument:
    """The task itself, or the only agent task of a job."""
    if ref.task_id is not None:
        return await client.app.get_task(ref.task_id)
    tasks = (await client.get_job(ref.job_id)).tasks
    if len(tasks) == 1:
        return tasks[0]
    runners = {name: await _runner_of(client, name) for name in {task.name for task in tasks}}
    agents = [task for task in tasks if runners[task.name] is RunnerKind.AGENT]
    if not agents:
        hint = f"`longshore logs {ref.job_id}` shows the output of its tasks"
        raise MissingResource(f"{ref.job_id} has no agent task", hint)
    if len(agents) > 1:
        ids = id_lines([task.request_id for task in agents])
        raise UsageError(f"{ref.job_id} has {len(agents)} agent tasks; name one of them:{ids}")
    return agents[0]


async def _runner_of(client: ApiClient, definition: str) -> str | None:
    """The runner of a definition; None: the definition was deleted."""
    try:
        return (await client.app.get_definition(definition)).runner
    except NotFound:
        return None


async def _read_trace(client: ApiClient, task: d.TaskDocument, attempt: int) -> dict[str, Any]:
    from longshore.core.agents.trace import TRACE_FILE

    id_ = task.request_id
    subject = f"attempt {attempt} of {id_}"
    hint = f"`longshore logs {id_}` shows its output"
    try:
        file = await client.app.open_artifact(id_, f"attempt-{attempt}/{TRACE_FILE}")
        content = json.loads(await file.read())
    except NotFound as error:
        runner = await _runner_of(client, task.name)
        problem = f"{subject} has no trace"
        if runner not in (None, RunnerKind.AGENT):
            problem = f"{id_} is a {runner} task; only agent tasks have a trace"
        elif task.worker_id is not None and attempt == task.attempt:
            problem = f"{subject} is running and stores its trace when it ends"
            hint = f"`longshore logs -f {id_}` shows its output"
        raise MissingResource(problem, hint) from error
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise MissingResource(f"the trace of {subject} is damaged", hint)
    return content
