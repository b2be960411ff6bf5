"""After a run: what is stored, what was noted and what was promised must agree."""

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
    STEPWISE,
    TENANT,
    ExpectedJob,
    data_folder,
    jobs,
    notes_folder,
    settings_for,
)


async def check_run(folder: Path) -> list[str]:
    """Everything that is not as it must be, in sentences."""
    problems = [*_check_notes(notes_folder(folder)), *_check_database(data_folder(folder))]
    problems += map(str, audit(read_snapshot(data_folder(folder), settled=True)))
    async with open_services(settings_for(folder)) as services:
        try:
            problems += [problem async for problem in _check_other_ports(services)]
            for wanted in jobs(notes_folder(folder)):
                problems += [problem async for problem in _check_job(services, wanted)]
        except LongshoreError as error:
            problems.append(f"what is stored cannot be read: {error!r}")
    return problems


def _check_notes(notes: Path) -> Iterator[str]:
    answers = read_notes(notes / ANSWERS)
    for answer in sorted(set(answers)):
        if answer.startswith("created ") and answers.count(answer) > 1:
            yield f"accepted twice as new, so lost in between: {answer}"
    for place in sorted(notes.iterdir()):
        lines = read_notes(place)
        for line in lines:
            if line.startswith("overlap "):
                yield f"{place.name}: another attempt began while attempt {line[8:]} was alive"
        for number, line in enumerate(lines):
            if line.startswith("kept ") and f"ran {line[5:]}" in lines[number:]:
                yield f"{place.name}: step {line[5:]!r} was run again although it was kept"


def _check_database(data: Path) -> Iterator[str]:
    connection = apsw.Connection(str(data / store_file.FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        for (found,) in connection.execute("PRAGMA integrity_check"):
            if found != "ok":
                yield f"the database is damaged: {found}"
        for key, size, file in connection.execute("SELECT key, size, file FROM blobs"):
            place = data / "blobs" / str(file)[:2] / str(file)
            if file is not None and (not place.exists() or place.stat().st_size != size):
                yield f"the file of blob {key!r} is missing or not whole"
    finally:
        connection.close()


async def _check_other_ports(services: Services) -> AsyncIterator[str]:
    backend = services.backend
    key = await backend.keys.find(KEY.hash)
    if key is None or key.revoked_at is None:
        yield f"a key was added and revoked, and is now {key}"
    if await backend.definitions.get(TENANT, DELETED_DEFINITION) is not None:
        yield "a definition was deleted, and is there"
    if await backend.blobs.size(DELETED_BLOB) is not None:
        yield "a blob was deleted, and is there"
    if await backend.blobs.get(BLOB) != BLOB_BYTES:
        yield "a blob was replaced, and is not the new one"
    if [one.name for one in await backend.queue_controls.list_pauses()] != [PAUSED_QUEUE]:
        yield "a queue was paused, another was resumed, and that is not how they are"
    if (account := await backend.budgets.get(TENANT, BUDGET.name)) != BUDGET:
        yield f"twice something was spent from an account, which is now {account}"


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
    kept: Any = await services.backend.blobs.size(key)
    if kept != tasks.LARGE_BYTES:
        yield f"the artifact of the attempt that completed has {kept} bytes"
