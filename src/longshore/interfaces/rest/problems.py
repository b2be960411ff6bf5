"""Everything that can go wrong at this door, as RFC 9457 problems: one shape, one table.

A problem says what happened, where, and what to do. What broke inside is logged with its trace and
told as nothing but the request's id, by which the log can be searched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    CommandRefused,
    Conflict,
    HasPathAndMessage,
    InvalidJob,
    LongshoreError,
    NotFound,
    UsageError,
)

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_KIND = "urn:longshore:problem:"
_TRY_AGAIN_S = 1


@dataclass(frozen=True, slots=True)
class Wrong:
    """One thing that is wrong with a request, and where."""

    path: str
    message: str


@dataclass(eq=False)
class Refused(Exception):
    """A request is answered with a problem."""

    status: int
    kind: str
    detail: str
    errors: Sequence[HasPathAndMessage] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def problem_of(error: LongshoreError) -> Refused:
    """What a client is told of an error that a service raised on purpose."""
    match error:
        case InvalidJob():
            return Refused(422, "invalid", "the request has problems", error.problems)
        case AlreadyExists():
            return Refused(422, "request-id-used", str(error))
        case NotFound():
            return Refused(404, "not-found", str(error))
        case CommandRefused():
            return Refused(409, "refused", str(error))
        case Conflict():
            return Refused(409, "conflict", f"{error}; read it again and decide again")
        case UsageError():
            return Refused(400, "bad-request", str(error))
        case BackendUnavailable():
            again = {"Retry-After": str(_TRY_AGAIN_S)}
            detail = "the store cannot be reached now; the same request may be sent again"
            return Refused(503, "unavailable", detail, headers=again)
    raise error


def answer(request: Request, refused: Refused) -> JSONResponse:
    """The problem on the wire."""
    document = document_of(refused, request.state.request_id)
    return JSONResponse(document, refused.status, dict(refused.headers), media_type=MEDIA_TYPE)


def document_of(refused: Refused, request_id: str) -> dict[str, Any]:
    """The problem as RFC 9457 has it."""
    document: dict[str, Any] = {
        "type": _KIND + refused.kind,
        "title": HTTPStatus(refused.status).phrase,
        "status": refused.status,
        "detail": refused.detail,
        "requestId": request_id,
    }
    if refused.errors:
        document["errors"] = [{"path": one.path, "message": one.message} for one in refused.errors]
    return document


def add_handlers(app: FastAPI) -> None:
    """Let the app answer every error with a problem."""

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return answer(request, error)

    @app.exception_handler(LongshoreError)
    async def known(request: Request, error: LongshoreError) -> JSONResponse:
        try:
            problem = problem_of(error)
        except LongshoreError:
            raise error from None  # nobody foresaw it: the gate answers
        if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.warning("request.unavailable", extra={"error": str(error)})
        return answer(request, problem)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        wrong = [
            Wrong(".".join(str(part) for part in one["loc"]), one["msg"]) for one in error.errors()
        ]
        return answer(request, Refused(422, "invalid", "the request has problems", wrong))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        headers = dict(error.headers or {})
        detail = str(error.detail)
        return answer(request, Refused(error.status_code, kind, detail, headers=headers))
