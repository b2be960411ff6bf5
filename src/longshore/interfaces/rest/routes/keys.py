"""API keys of the caller's tenant."""

from __future__ import annotations

from fastapi import APIRouter, Response

from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.auth import Admin
from longshore.interfaces.rest.openapi import answers, respond
from longshore.interfaces.rest.params import Body
from longshore.interfaces.rest.parsing import parse_model
from longshore.services import documents as d

router = APIRouter(tags=["keys"])


@router.get("/keys", **answers(d.KeyList))
async def list_keys(operations: Admin) -> Response:
    """List all keys, oldest first, revoked ones too, without their secrets."""
    return respond(await operations.list_keys())


@router.post("/keys", **answers(d.NewKeyDocument, status=201, body=s.KeyRequestDocument))
async def create_key(operations: Admin, document: Body) -> Response:
    """Create a key. Its secret is in this answer only."""
    request = parse_model(s.KeyRequestDocument, document)
    key = await operations.create_key(request.name, [scope.value for scope in request.scopes])
    return respond(key, 201)


@router.delete("/keys/{key_id}", **answers(d.KeyDocument, 404))
async def revoke_key(operations: Admin, key_id: str) -> Response:
    """Revoke a key, at every server at once."""
    return respond(await operations.revoke_key(key_id))
