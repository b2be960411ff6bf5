"""Definitions of the caller's tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Operator, Reader
from longshore.interfaces.rest.errors import ApiProblem
from longshore.interfaces.rest.openapi import answers, problem_responses, respond
from longshore.interfaces.rest.params import Body, Limit
from longshore.services import documents as d

router = APIRouter(prefix="/task-definitions", tags=["definitions"])


@router.get("", **answers(d.DefinitionList))
async def list_definitions(operations: Reader) -> Response:
    """List the newest version of each definition, by name, without those that are built in."""
    return respond(await operations.list_definitions())


@router.get("/{name}", **answers(d.DefinitionDocument, 404))
async def get_definition(
    operations: Reader,
    name: str,
    version: Annotated[
        int | None, Query(ge=1, le=2**31, description="Without it, the newest.")
    ] = None,
) -> Response:
    """Read a definition. A version that jobs use can be read also after it was deleted."""
    return respond(await operations.get_definition(name, version=version))


@router.get("/{name}/versions", **answers(d.DefinitionList, 404))
async def list_definition_versions(
    operations: Reader,
    name: str,
    limit: Limit = 50,
    after: Annotated[int, Query(ge=0, le=2**31, description="The last version that was read.")] = 0,
) -> Response:
    """List every version of a definition, from the first, also of a deleted one."""
    return respond(await operations.list_definition_versions(name, limit=limit, after=after))


@router.put("/{name}", **answers(d.DefinitionDocument, body=s.DefinitionRequestDocument))
async def put_definition(operations: Operator, name: str, document: Body) -> Response:
    """Store the next version; the same content again stores nothing. Running jobs keep theirs."""
    if isinstance(document, dict):
        if document.get("name", name) != name:
            raise ApiProblem(422, "invalid", "the name in the body is not the name in the path")
        # What was read can be sent again, and it has a version.
        fields = {field: value for field, value in document.items() if field != "version"}
        document = {**fields, "name": name}
    return respond(await operations.put_definition(document))


@router.delete(
    "/{name}", status_code=204, response_description="Deleted.", responses=problem_responses(404)
)
async def delete_definition(operations: Operator, name: str) -> Response:
    """Delete a definition: new jobs cannot use it, accepted jobs keep their version."""
    await operations.delete_definition(name)
    return Response(status_code=204)
