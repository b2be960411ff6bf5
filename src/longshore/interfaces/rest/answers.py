"""What routes have in common: documented problems, bodies, tags of what was read."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from longshore.interfaces.rest.problems import MEDIA_TYPE
from longshore.interfaces.rest.schemas import ProblemDocument

_EVERYWHERE = (400, 401, 403, 421, 422, 429, 500, 503)


def problems(*others: int) -> dict[int | str, dict[str, Any]]:
    """The answers that are problems, for the OpenAPI document: those of every route, and others."""
    schema = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
    return {
        status: {"description": "A problem.", "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*_EVERYWHERE, *others})
    }


def body_of(shape: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """How a body looks that the route reads by itself."""
    schema = {"$ref": f"#/components/schemas/{shape.__name__}"}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}


def tagged(request: Request, document: BaseModel) -> Response:
    """The document, or only that it is still the one which the client has."""
    data = json.dumps(document.model_dump(mode="json", by_alias=True), separators=(",", ":"))
    tag = f'"{hashlib.blake2b(data.encode(), digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    known = [one.strip().removeprefix("W/") for one in _listed(request, "if-none-match")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type="application/json")


def _listed(request: Request, header: str) -> list[str]:
    return request.headers.get(header, "").split(",")
