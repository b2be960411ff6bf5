"""What a path names, if it is the caller's: another tenant's is as unknown as one never made."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from longshore.core.rows import JobRow, TaskRow
from longshore.interfaces.rest.callers import Reader
from longshore.interfaces.rest.desk import AtDesk


async def _job(desk: AtDesk, caller: Reader, job_id: str) -> JobRow:
    return await desk.job(caller.tenant, job_id)


async def _task(desk: AtDesk, caller: Reader, job_id: str, task_id: str) -> TaskRow:
    return await desk.task(caller.tenant, job_id, task_id)


FoundJob = Annotated[JobRow, Depends(_job)]
FoundTask = Annotated[TaskRow, Depends(_task)]
