"""The bodies of ``why``, ``cancel``, ``resume``, ``approve``, ``revise`` and ``add``."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from longshore.core.states import JobState, TaskState
from longshore.errors import UsageError
from longshore.interfaces.cli import words
from longshore.interfaces.cli.desks.choosing import desk_for
from longshore.interfaces.cli.desks.desk import Desk, Document
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json
from longshore.interfaces.cli.submitting import fresh_id, read_document


async def why(here: Here, text: str) -> None:
    """Say why a job or task does not run."""
    async with desk_for(here) as desk:
        named = await desk.find(text)
        answer = await desk.why(named)
        if here.json:
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
    since, until = words.moment(reason["since"]), words.moment(reason["until"])
    times = []
    if since is not None:
        times.append(f"for {words.took(now - since)}")
    if until is not None and until > now:
        times.append(f"for another {words.took(until - now)}")
    if times:
        print(f"{indent}  {', '.join(times)}")
    if reason["remedy"] is not None:
        print(f"{indent}  → {reason['remedy']}")


async def cancel(here: Here, text: str, *, reason: str | None) -> None:
    """End a job, or one task."""
    async with desk_for(here) as desk:
        named = await desk.find(text)
        now = await desk.cancel(named, reason=reason)
        states = JobState if named.task_id is None else TaskState
        over = states(now["status"]).terminal
        id_ = named.task_id or named.job_id
        _tell(here, now, f"{id_} {'is cancelled' if over else 'is being cancelled'}")


async def resume(here: Here, text: str) -> None:
    """Run again what failed or was cancelled, of a job or one task."""
    async with desk_for(here) as desk:
        resumed = await desk.resume(await desk.find(text))
        tasks = words.number_of(len(resumed["tasks"]), "task")
        _tell(here, resumed, f"{resumed['jobId']}: {tasks} resumed, round {resumed['round']}")
        if not here.json:
            for key, why_not in resumed["refused"].items():
                print(f"  not {key}: {why_not}")


async def approve(here: Here, text: str) -> None:
    """A result is right."""
    async with desk_for(here) as desk:
        task_id = await task_meant(desk, text)
        _tell(here, await desk.approve(task_id), f"{task_id} is completed")


async def revise(here: Here, text: str, feedback: str) -> None:
    """A result is to be bettered."""
    async with desk_for(here) as desk:
        task_id = await task_meant(desk, text)
        now = await desk.revise(task_id, feedback)
        _tell(here, now, f"{task_id} goes back, revision {now['revision']}")


async def add(here: Here, text: str, file: Path, *, request_id: str | None) -> None:
    """Add a file's tasks to a job."""
    document = read_document(file)
    async with desk_for(here) as desk:
        job_id = (await desk.find(text)).job_id
        added = await desk.add(job_id, document, request_id or fresh_id())
        tasks = words.number_of(len(added["addedTasks"]), "task")
        known = "" if added["created"] else " (they were added before)"
        _tell(here, added, f"{job_id}: {tasks} added, {added['totalTasks']} in all{known}")


async def task_meant(desk: Desk, text: str) -> str:
    """The id of the task that a text means.

    Raises:
        UsageError: it means a job, or several things.
        Missing: it means nothing.
    """
    named = await desk.find(text)
    if named.task_id is None:
        message = f"{text!r} is a job: name one of its tasks, such as {named.job_id}_…"
        raise UsageError(message)
    return named.task_id


def _tell(here: Here, document: Document, sentence: str) -> None:
    if here.json:
        print_json(document)
    else:
        print(sentence)
