"""One task: what it is, what came of it, what it left."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from longshore.core.blob_keys import attempt_file, checked_key
from longshore.errors import NotFound
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.found import FoundTask
from longshore.interfaces.rest.jobs import task_document
from longshore.interfaces.rest.params import LongLimit
from longshore.interfaces.rest.problems import Refused

router = APIRouter(prefix="/jobs/{job_id}/tasks/{task_id}", tags=["tasks"])


@router.get("", response_model=s.TaskDocument, responses=problems(404))
async def read_task(desk: AtDesk, row: FoundTask) -> Any:
    """The task as it is now."""
    return await task_document(desk, row)


@router.get("/result", response_model=s.ResultDocument, responses=problems(404, 409))
async def read_result(desk: AtDesk, row: FoundTask) -> Any:
    """What the task hands to those that depend on it."""
    if row.result is None:
        detail = f"the task is {row.state.value} and has no result"
        raise Refused(409, "no-result", detail)
    return {"result": await desk.documents.load(row.result)}


@router.get("/artifacts", response_model=s.ArtifactList, responses=problems(404))
async def list_artifacts(
    desk: AtDesk,
    row: FoundTask,
    limit: LongLimit = 100,
    after: Annotated[str, Query(max_length=1_024, description="`name` of the last one seen.")] = "",
) -> Any:
    """Files that attempts have left."""
    prefix = attempt_file(row.id, 0, "").removesuffix("attempt-0/")
    keys = await desk.backend.blobs.keys(prefix, after=prefix + after, limit=limit)
    found = []
    for key in keys:
        size = await desk.backend.blobs.size(key)
        if size is not None:
            found.append({"name": key.removeprefix(prefix), "bytes": size})
    return {"artifacts": found}


@router.get(
    "/artifacts/{name:path}",
    response_class=StreamingResponse,
    responses={
        **problems(404),
        200: {
            "description": "The file.",
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        },
    },
)
async def read_artifact(desk: AtDesk, row: FoundTask, name: str) -> Any:
    """One of these files."""
    key = checked_key(attempt_file(row.id, 0, "").removesuffix("attempt-0/") + name)
    size = await desk.backend.blobs.size(key)
    if size is None:
        raise NotFound("artifact", name[:300])
    # Whatever it is, a browser must not run it here.
    headers = {"Content-Length": str(size), "Content-Disposition": "attachment"}
    return StreamingResponse(
        desk.backend.blobs.stream(key), headers=headers, media_type="application/octet-stream"
    )
