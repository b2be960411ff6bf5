"""Checks after a run: stored data, notes and answers must agree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.sqlite import store_file
from longshore.audit.audit import audit
from longshore.audit.sqlite_reader import read_snapshot
from longshore.core.documents import attempt_file_key
from longshore.errors import LongshoreError
from longshore.wiring.services import Services, open_services
from verification.crash import tasks
from verification.crash.client import (
    ANSWERS,
    BLOB,
    BLOB_BYTES,
    BUDGET,
    DELETED_BLOB,
    DELETED_DEFINITION,
    KEY,
    PAUSED_QUEUE,
)
from verification.crash.tasks import read_notes
from verification.crash.workload import (
    REMOVED,
    STEPWISE,
    TENANT,
    ExpectedJob,
    data_folder,
    jobs,
    notes_folder,
    settings_for,
)


async def check_run(folder: Path) -> list[str]:
    """Returns a sentence for each problem."""
    problems = [*_check_notes(notes_folder(folder)), *_check_database(data_folder(folder))]
    problems += map(str, audit(read_snapshot(data_folder(folder), settled=True)))
    async with open_services(settings_for(folder)) as services:
        try:
            problems += [problem async for problem in _check_other_ports(services)]
            for expected in jobs(notes_folder(folder)):
                problems += [problem async for problem in _check_job(services, expected)]
        except LongshoreError as error:
            problems.append(f"the stored data cannot be read: {error!r}")
    return problems


def _check_notes(notes: Path) -> Iterator[str]:
    answers = read_notes(notes / ANSWERS)
    for answer in sorted(set(answers)):
        if answer.startswith("created ") and answers.count(answer) > 1:
            yield f"accepted twice as new, so lost between the two: {answer}"
    for path in sorted(notes.iterdir()):
        lines = read_notes(path)
        for line in lines:
            if line.startswith("overlap "):
                yield f"{path.name}: another attempt began while attempt {line[8:]} was alive"
        for number, line in enumerate(lines):
            if line.startswith("saved ") and f"ran {line[6:]}" in lines[number:]:
                yield f"{path.name}: step {line[6:]!r} ran again although its result was saved"


def _check_database(data: Path) -> Iterator[str]:
    connection = apsw.Connection(str(data / store_file.FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for (finding,) in connection.execute("PRAGMA integrity_check"):
            if finding != "ok":
                yield f"the database is damaged: {finding}"
        for key, size, file in connection.execute("SELECT key, size, file FROM blobs"):
            path = data / "blobs" / str(file)[:2] / str(file)
            if file is not None and (not path.exists() or path.stat().st_size != size):
                yield f"the file of blob {key!r} is missing or incomplete"
    finally:
        connection.close()


async def _check_other_ports(services: Services) -> AsyncIterator[str]:
    backend = services.backend
    key = await backend.keys.find(KEY.hash)
    if key is None or key.revoked_at is None:
        yield f"a key was added and revoked, but is now {key}"
    if await backend.definitions.get(TENANT, DELETED_DEFINITION) is not None:
        yield "a definition was deleted, but still exists"
    if await backend.blobs.size(DELETED_BLOB) is not None:
        yield "a blob was deleted, but still exists"
    if await backend.blobs.get(BLOB) != BLOB_BYTES:
        yield "a blob was replaced, but has other content"
    if [pause.name for pause in await backend.queue_controls.list_pauses()] != [PAUSED_QUEUE]:
        yield "one queue was paused and another resumed, but the stored pauses differ"
    if not await backend.require_retention().is_removed(REMOVED.job_id):
        yield "a job was removed, but is not remembered"
    if await backend.ledger.get_job(REMOVED.job_id) is not None:
        yield "a job was removed, but still exists"
    if await backend.blobs.list_keys(f"jobs/{REMOVED.job_id}/"):
        yield "a job was removed, but its blobs still exist"
    if (account := await backend.budgets.get(TENANT, BUDGET.name)) != BUDGET:
        yield f"a budget was spent from twice, but is now {account}"


async def _check_job(services: Services, expected: ExpectedJob) -> AsyncIterator[str]:
    job = await services.backend.ledger.get_job(expected.job_id)
    if job is None or job.state is not expected.state:
        yield f"job {expected.request_id} is {job and job.state}, not {expected.state}"
        return
    for task_id in expected.task_ids():
        row = await services.backend.ledger.get_task(task_id)
        if row is None or row.state is not expected.task_state:
            yield f"task {task_id} is {row and row.state}, not {expected.task_state}"
            continue
        if row.spec.key in expected.results:
            result = await services.documents.load(row.result)
            if result != expected.results[row.spec.key]:
                yield f"the result of task {row.spec.key} is {str(result)[:80]}"
    if expected.request_id == STEPWISE:
        async for problem in _check_artifact(services, task_id):
            yield problem


async def _check_artifact(services: Services, task_id: str) -> AsyncIterator[str]:
    row = await services.backend.ledger.get_task(task_id)
    key = attempt_file_key(task_id, row.attempt if row else 0, f"artifacts/{tasks.ARTIFACT}")
    size: Any = await services.backend.blobs.size(key)
    if size != tasks.LARGE_BYTES:
        yield f"the artifact of the attempt that completed has {size} bytes"
