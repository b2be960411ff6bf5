"""Keys of the caller's tenant."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from longshore.core.keys import Scope
from longshore.interfaces import views
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import body_of, problems
from longshore.interfaces.rest.bodies import shaped
from longshore.interfaces.rest.callers import Admin
from longshore.interfaces.rest.desk import AtDesk
from longshore.interfaces.rest.params import Body

router = APIRouter(tags=["keys"])


@router.get("/keys", response_model=s.KeyList, responses=problems())
async def list_keys(desk: AtDesk, caller: Admin) -> Any:
    """All keys, oldest first, revoked ones too; never the keys themselves."""
    return {
        "keys": [views.key_document(record) for record in await desk.access.list(caller.tenant)]
    }


@router.post(
    "/keys",
    status_code=201,
    response_model=s.NewKeyDocument,
    responses=problems(413, 415),
    openapi_extra=body_of(s.KeyRequestDocument),
)
async def create_key(desk: AtDesk, caller: Admin, document: Body) -> Any:
    """Make a key. It is shown in this answer and never again."""
    wanted = shaped(s.KeyRequestDocument, document)
    scopes = {Scope(name) for name in wanted.scopes}
    record, text = await desk.access.create(
        caller.tenant, name=wanted.name, scopes=scopes, by=caller.by
    )
    return {**views.key_document(record), "key": text}


@router.delete("/keys/{key_id}", response_model=s.KeyDocument, responses=problems(404))
async def revoke_key(desk: AtDesk, caller: Admin, key_id: str) -> Any:
    """From now on the key allows nothing, at every server at once."""
    return views.key_document(await desk.access.revoke(caller.tenant, key_id, by=caller.by))
