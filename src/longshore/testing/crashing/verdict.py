"""After a run: what is stored, what was noted and what was promised must agree."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import apsw

from longshore.adapters.sqlite import opening
from longshore.core.blob_keys import attempt_file
from longshore.errors import LongshoreError
from longshore.testing.auditing.audit import audit
from longshore.testing.auditing.from_sqlite import evidence_of
from longshore.testing.crashing import tasks
from longshore.testing.crashing.client import (
    ACCOUNT,
    ANSWERS,
    BLOB,
    BLOB_BYTES,
    GONE_BLOB,
    GONE_DEFINITION,
    KEY,
    PAUSED_QUEUE,
)
from longshore.testing.crashing.tasks import noted
from longshore.testing.crashing.workload import (
    STEPWISE,
    TENANT,
    Wanted,
    data_in,
    jobs,
    notes_in,
    settings_in,
)
from longshore.wiring import Services, wired


async def problems_in(folder: Path) -> list[str]:
    """Everything that is not as it must be, in sentences."""
    problems = [*_of_notes(notes_in(folder)), *_of_the_file(data_in(folder))]
    problems += map(str, audit(evidence_of(data_in(folder), settled=True)))
    async with wired(settings_in(folder)) as services:
        try:
            problems += [problem async for problem in _of_what_else_there_is(services)]
            for wanted in jobs(notes_in(folder)):
                problems += [problem async for problem in _of_job(services, wanted)]
        except LongshoreError as error:
            problems.append(f"what is stored cannot be read: {error!r}")
    return problems


def _of_notes(notes: Path) -> Iterator[str]:
    answers = noted(notes / ANSWERS)
    for answer in sorted(set(answers)):
        if answer.startswith("created ") and answers.count(answer) > 1:
            yield f"accepted twice as new, so lost in between: {answer}"
    for place in sorted(notes.iterdir()):
        lines = noted(place)
        for line in lines:
            if line.startswith("overlap "):
                yield f"{place.name}: another attempt began while attempt {line[8:]} was alive"
        for number, line in enumerate(lines):
            if line.startswith("kept ") and f"ran {line[5:]}" in lines[number:]:
                yield f"{place.name}: step {line[5:]!r} was run again although it was kept"


def _of_the_file(data: Path) -> Iterator[str]:
    connection = apsw.Connection(str(data / opening.FILE_NAME), flags=apsw.SQLITE_OPEN_READONLY)
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


async def _of_what_else_there_is(services: Services) -> AsyncIterator[str]:
    backend = services.backend
    key = await backend.keys.find(KEY.hash)
    if key is None or key.revoked_at is None:
        yield f"a key was added and revoked, and is now {key}"
    if await backend.definitions.get(TENANT, GONE_DEFINITION) is not None:
        yield "a definition was deleted, and is there"
    if await backend.blobs.size(GONE_BLOB) is not None:
        yield "a blob was deleted, and is there"
    if await backend.blobs.get(BLOB) != BLOB_BYTES:
        yield "a blob was replaced, and is not the new one"
    if [one.name for one in await backend.queues.paused()] != [PAUSED_QUEUE]:
        yield "a queue was paused, another was resumed, and that is not how they are"
    if (account := await backend.accounts.account(TENANT, ACCOUNT.name)) != ACCOUNT:
        yield f"twice something was spent from an account, which is now {account}"


async def _of_job(services: Services, wanted: Wanted) -> AsyncIterator[str]:
    job = await services.backend.ledger.job(wanted.job_id)
    if job is None or job.state is not wanted.state:
        yield f"job {wanted.request_id} is {job and job.state}, not {wanted.state}"
        return
    for task_id in wanted.task_ids():
        row = await services.backend.ledger.task(task_id)
        if row is None or row.state is not wanted.task_state:
            yield f"task {task_id} is {row and row.state}, not {wanted.task_state}"
            continue
        if row.spec.key in wanted.results:
            result = await services.documents.load(row.result)
            if result != wanted.results[row.spec.key]:
                yield f"the result of task {row.spec.key} is {str(result)[:80]}"
    if wanted.request_id == STEPWISE:
        async for problem in _of_artifact(services, task_id):
            yield problem


async def _of_artifact(services: Services, task_id: str) -> AsyncIterator[str]:
    row = await services.backend.ledger.task(task_id)
    key = attempt_file(task_id, row.attempt if row else 0, f"artifacts/{tasks.ARTIFACT}")
    kept: Any = await services.backend.blobs.size(key)
    if kept != tasks.LARGE_BYTES:
        yield f"the artifact of the attempt that completed has {kept} bytes"
