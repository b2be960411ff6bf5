"""The bodies of ``why``, ``cancel``, ``resume``, ``approve``, ``revise`` and ``add``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from longshore.core.tasks.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces.cli.clients.api_client import ApiClient, Document
from longshore.interfaces.cli.clients.selection import open_client
from longshore.interfaces.cli.operations.submit import new_request_id, read_document
from longshore.interfaces.cli.options import GlobalOptions
from longshore.interfaces.cli.render import formats
from longshore.interfaces.cli.render.screen import print_json


async def why(options: GlobalOptions, text: str) -> None:
    """Say why a job or task does not run."""
    async with open_client(options) as desk:
        named = await desk.resolve(text)
        answer = await desk.why(named)
        if options.json:
            print_json(answer)
            return
        told: str | None = None
        for depth, reason in enumerate(answer["reasons"]):
            # Of a job, what comes after the first stands side by side.
            indent = "  " * (depth if named.task_id else min(depth, 1))
            remedy = reason["remedy"]
            _print_reason(
                {**reason, "remedy": None if remedy == told else remedy}, indent, desk.now()
            )
            told = remedy or told


def _print_reason(reason: Document, indent: str, now: datetime) -> None:
    print(f"{indent}{reason['text']}")
    since, until = formats.parse_time(reason["since"]), formats.parse_time(reason["until"])
    times = []
    if since is not None:
        times.append(f"for {formats.duration_text(now - since)}")
    if until is not None and until > now:
        times.append(f"for another {formats.duration_text(until - now)}")
    if times:
        print(f"{indent}  {', '.join(times)}")
    if reason["remedy"] is not None:
        print(f"{indent}  → {reason['remedy']}")


async def cancel(options: GlobalOptions, text: str, *, reason: str | None) -> None:
    """End a job, or one task."""
    async with open_client(options) as desk:
        named = await desk.resolve(text)
        now = await desk.cancel(named, reason=reason)
        states = JobState if named.task_id is None else TaskState
        over = states(now["status"]).terminal
        id_ = named.task_id or named.job_id
        _print_answer(options, now, f"{id_} {'is cancelled' if over else 'is being cancelled'}")


async def resume(options: GlobalOptions, text: str) -> None:
    """Run again what failed or was cancelled, of a job or one task."""
    async with open_client(options) as desk:
        resumed = await desk.resume(await desk.resolve(text))
        tasks = formats.plural(len(resumed["tasks"]), "task")
        _print_answer(
            options, resumed, f"{resumed['jobId']}: {tasks} resumed, round {resumed['round']}"
        )
        if not options.json:
            for key, why_not in resumed["refused"].items():
                print(f"  not {key}: {why_not}")


async def approve(options: GlobalOptions, text: str) -> None:
    """A result is right."""
    async with open_client(options) as desk:
        task_id = await resolve_task(desk, text)
        _print_answer(options, await desk.approve(task_id), f"{task_id} is completed")


async def revise(options: GlobalOptions, text: str, feedback: str) -> None:
    """A result is to be bettered."""
    async with open_client(options) as desk:
        task_id = await resolve_task(desk, text)
        now = await desk.revise(task_id, feedback)
        _print_answer(options, now, f"{task_id} goes back, revision {now['revision']}")


async def add(options: GlobalOptions, text: str, file: Path, *, request_id: str | None) -> None:
    """Add a file's tasks to a job."""
    document = read_document(file)
    async with open_client(options) as desk:
        job_id = (await desk.resolve(text)).job_id
        added = await desk.add_tasks(job_id, document, request_id or new_request_id())
        tasks = formats.plural(len(added["addedTasks"]), "task")
        known = "" if added["created"] else " (they were added before)"
        _print_answer(
            options, added, f"{job_id}: {tasks} added, {added['totalTasks']} in all{known}"
        )


async def resolve_task(client: ApiClient, text: str) -> str:
    """The id of the task that a text means.

    Raises:
        UsageError: it means a job, or several things.
        Missing: it means nothing.
    """
    named = await client.resolve(text)
    if named.task_id is None:
        message = f"{text!r} is a job: name one of its tasks, such as {named.job_id}_…"
        raise UsageError(message)
    return named.task_id


def _print_answer(options: GlobalOptions, document: Document, sentence: str) -> None:
    if options.json:
        print_json(document)
    else:
        print(sentence)
