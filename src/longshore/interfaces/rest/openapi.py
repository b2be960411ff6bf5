"""How routes answer with documents, and how the OpenAPI document describes the answers."""

from __future__ import annotations

import hashlib
import inspect
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from longshore.interfaces.rest.auth import take_stream, while_allowed
from longshore.interfaces.rest.errors import MEDIA_TYPE
from longshore.interfaces.rest.requests import (
    JobId,
    OptionalBody,
    TaskId,
    parse_model,
    submit_off_loop,
)
from longshore.services import documents as d
from longshore.services.app import HTTP_REQUESTS, Application

_JSON = "application/json"
_REF = "#/components/schemas/{name}"
_COMMON_STATUSES = (400, 401, 403, 421, 422, 429, 500, 503)
_PROBLEMS = {
    400: "The request is malformed.",
    401: "The API key is missing, unknown or revoked.",
    403: "The API key does not have the scope, or is limited to other tasks.",
    404: "There is no such resource in the tenant.",
    409: "The state of the resource does not allow the operation.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    421: "The host name is not allowed.",
    422: "The request is invalid; the problem says why.",
    429: "The rate limit is exceeded; `Retry-After` says when to retry.",
    500: "An unexpected error.",
    503: "The backend is unavailable; retry later.",
}
_STREAM: Mapping[str, Any] = {
    "response_class": EventSourceResponse,
    "response_description": "A stream of server-sent events.",
}
# The documents and bodies of all routes, which the framework does not know of.
_documents: set[type[d.ApiDocument]] = {d.ProblemDocument}
_bodies: list[type[BaseModel]] = []


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that every route can answer with, and those with these statuses."""
    schema = {"$ref": _REF.format(name=d.ProblemDocument.__name__)}
    return {
        status: {"description": _PROBLEMS[status], "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted({*_COMMON_STATUSES, *statuses})
    }


def answers(
    document: type[d.ApiDocument] | None,
    *problems: int,
    status: int = 200,
    others: Mapping[int, str] | None = None,
    body: type[BaseModel] | None = None,
    body_required: bool = True,
) -> dict[str, Any]:
    """The arguments of a route that answers with a document, or with nothing.

    Args:
        problems: Statuses of problems besides those of every route.
        others: Other statuses with the same document, each with its description.
        body: The request body, which the route reads itself.
    """
    route: dict[str, Any] = {"status_code": status, "response_model": None}
    if body is not None:
        _bodies.append(body)
        problems = (*problems, 413, 415)
        content = {_JSON: {"schema": {"$ref": _REF.format(name=body.__name__)}}}
        route["openapi_extra"] = {"requestBody": {"required": body_required, "content": content}}
    responses = problem_responses(*problems)
    if document is None:
        responses[status] = {"description": "Deleted."}
    else:
        _documents.add(document)
        content = {_JSON: {"schema": {"$ref": _REF.format(name=document.__name__)}}}
        for code, text in {status: document.__doc__ or "", **(others or {})}.items():
            responses[code] = {"description": text, "content": content if code != 304 else {}}
    return {**route, "responses": responses}


def operation_route(
    router: APIRouter,
    operation: Callable[..., Any],
    *problems: int,
    status: int = 200,
    others: Mapping[int, str] | None = None,
    body: type[BaseModel] | None = None,
) -> Callable[[Callable[..., None]], None]:
    """A route that carries out an operation, which declares its request and its answer.

    The decorated function is the description of the route: it has the parameters of the operation
    as a request has them, and is never called. A stream is answered with server-sent events; its
    parameter ``last_seen`` is the position from which a client continues.

    Args:
        status: Of the answer; 200 if the same request was carried out before.
        body: The model of the body. A parameter ``request`` means that the body describes jobs.
            If there is a parameter ``document``, the model's fields are
            parameters of the operation, unless the operation reads the document itself.
    """
    request = HTTP_REQUESTS[operation.__name__]
    reads_document = "document" in inspect.signature(operation).parameters

    def register(described: Callable[..., None]) -> None:
        signature = inspect.signature(described, eval_str=True)
        kinds = {name: item.annotation for name, item in signature.parameters.items()}

        async def carry_out(operations: Application, **values: Any) -> Any:
            if body is not None and "document" in values and not reads_document:
                values |= dict(parse_model(body, values.pop("document")))
            if last_seen := values.pop("last_seen", None):
                values["cursor" if "cursor" in values else "after"] = last_seen
            submit: Request | None = values.pop("request", None)
            work = getattr(operations, operation.__name__)(**values)
            return await (submit_off_loop(submit, operations, work) if submit else work)

        async def answer(operations: Application, **values: Any) -> Response:
            document = await carry_out(operations, **values)
            return respond(document, status if getattr(document, "created", True) else 200)

        carry_out.__signature__ = answer.__signature__ = signature  # type: ignore[attr-defined]
        document: Any = request.document
        endpoint: Callable[..., Any] = answer
        if document is d.StreamItem:
            endpoint = _event_stream(carry_out)
            route = {**_STREAM, "responses": problem_responses(*problems)}
        else:
            required = kinds.get("document") != OptionalBody
            route = answers(
                *(document, *problems),
                status=status,
                others=others,
                body=body,
                body_required=required,
            )
        router.add_api_route(
            _route_path(request.path, kinds),
            endpoint,
            methods=[request.method],
            name=described.__name__,
            description=inspect.getdoc(described),
            **route,
        )

    return register


def _event_stream(open_stream: Callable[..., Any]) -> Callable[..., Any]:
    # Opened by a dependency, so that its errors are answered before the stream begins.
    opened = Depends(open_stream)

    async def stream_events(
        request: Request, stream: Any = opened, _: None = Depends(take_stream)
    ) -> AsyncIterator[ServerSentEvent]:
        async for item in while_allowed(request, stream):
            yield ServerSentEvent(
                event=item.kind, id=item.id, raw_data=d.encode(item.data).decode()
            )

    return stream_events


def _route_path(path: str, kinds: Mapping[str, Any]) -> str:
    """The path of a request: a parameter that the route does not have is left out."""
    parts = defaultdict(str, {name: f"{{{name}}}" for name in kinds})
    for name, kind in kinds.items():
        if kind in (JobId, TaskId):
            parts[name] = "jobs/{job_id}" + ("/tasks/{task_id}" if kind == TaskId else "")
    return "/" + path.format_map(parts).lstrip("/")


def respond(
    document: d.ApiDocument | None, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """The document as a response; None: an empty one."""
    if document is None:
        return Response(status_code=status)
    return Response(d.encode(document), status, headers, media_type=_JSON)


def respond_with_etag(request: Request, document: d.ApiDocument) -> Response:
    """The document, or 304 if the client has it already."""
    data = d.encode(document)
    tag = f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    cached = request.headers.get("if-none-match", "").split(",")
    if {tag, "*"} & {entry.strip().removeprefix("W/") for entry in cached}:
        return Response(status_code=304, headers=headers)
    return Response(data, headers=headers, media_type=_JSON)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the app."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, summary=app.summary, version=app.version, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        ordered = sorted(_documents, key=lambda kind: kind.__name__)
        bodies: Any = [(model, "validation") for model in _bodies]
        template = _REF.format(name="{model}")
        schemas.update(models_json_schema(bodies, ref_template=template)[1]["$defs"])
        schemas.update(msgspec.json.schema_components(ordered, ref_template=_REF)[1])
        app.openapi_schema = document
    return app.openapi_schema
