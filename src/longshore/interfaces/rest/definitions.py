"""Definitions of the caller's tenant: J9."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from longshore.core.definition import BUILTIN, Definition
from longshore.errors import NotFound
from longshore.interfaces.definition_documents import definition_document, read_definition
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems
from longshore.interfaces.rest.callers import Operator, Reader
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.params import Body, Limit
from longshore.interfaces.rest.problems import Refused

router = APIRouter(prefix="/task-definitions", tags=["definitions"])


@router.get("", response_model=s.DefinitionList, responses=problems())
async def list_definitions(desk: AtDesk, caller: Reader) -> Any:
    """The newest version of each, by name; those that are built in are not among them."""
    found = await desk.backend.definitions.list(caller.tenant)
    return {"definitions": [definition_document(one) for one in found]}


@router.get("/{name}", response_model=s.DefinitionDocument, responses=problems(404))
async def read_one(
    desk: AtDesk,
    caller: Reader,
    name: str,
    version: Annotated[int | None, Query(ge=1, le=2**31, description="None: the newest.")] = None,
) -> Any:
    """A definition. A version that a job was started with is there also when it was deleted."""
    found = await desk.backend.definitions.get(caller.tenant, name, version=version)
    if found is None and version is None:
        found = BUILTIN.get(name)
    if found is None:
        raise NotFound("definition", name[:100])
    return definition_document(found)


@router.get("/{name}/versions", response_model=s.DefinitionList, responses=problems(404))
async def list_versions(
    desk: AtDesk,
    caller: Reader,
    name: str,
    limit: Limit = 50,
    after: Annotated[int, Query(ge=0, le=2**31, description="The last version seen.")] = 0,
) -> Any:
    """Every version that was ever stored, from the first, also of a definition that was deleted."""
    found: list[Definition] = []
    definitions = desk.backend.definitions
    # They are counted without a gap, so the first that is missing is the end.
    for version in range(after + 1, after + 1 + limit):
        one = await definitions.get(caller.tenant, name, version=version)
        if one is None:
            break
        found.append(one)
    if not found and await definitions.get(caller.tenant, name, version=1) is None:
        raise NotFound("definition", name[:100])
    return {"definitions": [definition_document(one) for one in found]}


@router.put(
    "/{name}",
    response_model=s.DefinitionDocument,
    responses=problems(413, 415),
    openapi_extra=body_of(s.DefinitionRequestDocument),
)
async def put(desk: AtDesk, caller: Operator, name: str, document: Body) -> Any:
    """Store the next version; the same content again stores nothing. Running jobs keep theirs."""
    if isinstance(document, dict):
        if document.get("name", name) != name:
            raise Refused(422, "invalid", "the name in the body is not the name in the path")
        # What was read can be sent again.
        document = {**{key: one for key, one in document.items() if key != "version"}, "name": name}
    stored = await desk.backend.definitions.put(caller.tenant, read_definition(document))
    return definition_document(stored)


@router.delete("/{name}", status_code=204, responses=problems(404))
async def delete(desk: AtDesk, caller: Operator, name: str) -> Response:
    """No new job can name it; running ones go on."""
    if not await desk.backend.definitions.delete(caller.tenant, name):
        raise NotFound("definition", name[:100])
    return Response(status_code=204)
