"""The bodies of ``why``, ``cancel``, ``resume``, ``approve``, ``revise`` and ``add``."""

from __future__ import annotations

import getpass
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from longshore.core.ids import split_task_id, task_id_of
from longshore.core.reasons import Reason
from longshore.core.rows import TaskRow
from longshore.core.states import TaskState
from longshore.errors import CommandRefused, UsageError
from longshore.interfaces import views
from longshore.interfaces.cli import naming, words
from longshore.interfaces.cli.options import Here
from longshore.interfaces.cli.screen import print_json
from longshore.interfaces.cli.session import Session, existing, settings_for
from longshore.interfaces.cli.submitting import read_document

_AGAIN = (TaskState.FAILED, TaskState.CANCELLED)


async def why(here: Here, text: str) -> None:
    """Say why a job or task does not run."""
    async with existing(settings_for(here)) as session:
        named = await _named(session, text)
        paused = {queue.name: queue for queue in await session.backend.queues.paused()}
        reasons = await session.explaining.explain(
            session.settings.tenant, named.task_id or named.job_id, paused=paused
        )
        if here.json:
            print_json({"reasons": [views.reason_document(reason) for reason in reasons]})
            return
        now, told = session.backend.clock.now(), None
        for depth, reason in enumerate(reasons):
            # Of a job, what comes after the first stands side by side.
            indent = "  " * (depth if named.task_id else min(depth, 1))
            remedy = None if reason.remedy_command == told else reason.remedy_command
            _print_reason(replace(reason, remedy_command=remedy), indent, now)
            told = reason.remedy_command or told


def _print_reason(reason: Reason, indent: str, now: datetime) -> None:
    print(f"{indent}{reason.text}")
    times = []
    if reason.since is not None:
        times.append(f"for {words.took(now - reason.since)}")
    if reason.until is not None and reason.until > now:
        times.append(f"for another {words.took(reason.until - now)}")
    if times:
        print(f"{indent}  {', '.join(times)}")
    if reason.remedy_command is not None:
        print(f"{indent}  → {reason.remedy_command}")


async def cancel(here: Here, text: str, *, reason: str | None) -> None:
    """End a job, or one task."""
    async with existing(settings_for(here)) as session:
        named, tenant = await _named(session, text), session.settings.tenant
        if named.task_id is None:
            await session.cancelling.cancel(
                named.job_id, by=by_whom(), reason=reason, tenant=tenant
            )
            job = await session.backend.ledger.job(named.job_id)
            if here.json:
                print_json(views.job_document(job, exit_code=None) if job else {})
            else:
                over = job is not None and job.state.terminal
                print(f"{named.job_id} {'is cancelled' if over else 'is being cancelled'}")
            return
        row = await session.cancelling.cancel_task(
            tenant, named.task_id, by=by_whom(), reason=reason
        )
        _tell(here, row, "is cancelled" if row.state.terminal else "is being cancelled")


async def resume(here: Here, text: str) -> None:
    """Run again what failed or was cancelled, of a job or one task."""
    async with existing(settings_for(here)) as session:
        named, ledger = await _named(session, text), session.backend.ledger
        ids = [named.task_id] if named.task_id else []
        if named.task_id is None:
            states = await ledger.task_states(named.job_id)
            ids = [task_id_of(named.job_id, key) for key, one in states.items() if one in _AGAIN]
        if not ids:
            raise CommandRefused(named.job_id, "nothing of it has failed or was cancelled")
        resumed = await session.resuming.resume(
            named.job_id, ids, by=by_whom(), tenant=session.settings.tenant
        )
        if not resumed.tasks:
            raise CommandRefused(ids[0], resumed.refused[ids[0]])
        if here.json:
            print_json(
                {
                    "jobId": named.job_id,
                    "round": resumed.round,
                    "tasks": [split_task_id(one)[1] for one in resumed.tasks],
                    "refused": dict(resumed.refused),
                }
            )
            return
        tasks = words.number_of(len(resumed.tasks), "task")
        print(f"{named.job_id}: {tasks} resumed, round {resumed.round}")
        for task_id, why_not in resumed.refused.items():
            print(f"  not {split_task_id(task_id)[1]}: {why_not}")


async def approve(here: Here, text: str) -> None:
    """A result is right."""
    async with existing(settings_for(here)) as session:
        task_id, tenant = await _task(session, text), session.settings.tenant
        row = await session.reviewing.approve(tenant, task_id, by=by_whom())
        _tell(here, row, "is completed")


async def revise(here: Here, text: str, feedback: str) -> None:
    """A result is to be bettered."""
    async with existing(settings_for(here)) as session:
        task_id, tenant = await _task(session, text), session.settings.tenant
        row = await session.reviewing.request_revision(
            tenant, task_id, by=by_whom(), feedback=feedback
        )
        _tell(here, row, f"goes back, revision {row.revision}")


async def add(here: Here, text: str, file: Path, *, request_id: str | None) -> None:
    """Add a file's tasks to a job."""
    from longshore.wiring import new_id

    document = read_document(file)
    async with existing(settings_for(here)) as session:
        tenant = session.settings.tenant
        job_id = await naming.find_job(session.backend.ledger, tenant, text)
        added = await session.adding.add(tenant, job_id, request_id or new_id(), document)
        if here.json:
            print_json(
                {
                    "jobId": job_id,
                    "totalTasks": added.job.total,
                    "addedTasks": list(added.keys),
                    "created": added.created,
                }
            )
            return
        tasks = words.number_of(len(added.keys), "task")
        known = "" if added.created else " (they were added before)"
        print(f"{job_id}: {tasks} added, {added.job.total} in all{known}")


async def _named(session: Session, text: str) -> naming.Named:
    return await naming.find(session.backend.ledger, session.settings.tenant, text)


async def _task(session: Session, text: str) -> str:
    named = await _named(session, text)
    if named.task_id is None:
        message = f"{text!r} is a job: name one of its tasks, such as {named.job_id}_…"
        raise UsageError(message)
    return named.task_id


def _tell(here: Here, row: TaskRow, what: str) -> None:
    if here.json:
        print_json(views.task_document(row))
    else:
        print(f"{row.id} {what}")


def by_whom() -> str:
    """Whoever sits here, for the history."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "user"
