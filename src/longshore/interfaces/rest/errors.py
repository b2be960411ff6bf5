"""Errors as RFC 9457 problem documents.

A problem says what happened, where, and what to do. An unexpected error is logged with its trace;
the client gets only the request's id, by which the log can be searched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    CommandRefused,
    Conflict,
    InvalidJob,
    LongshoreError,
    NotFound,
    Problem,
    UsageError,
)
from longshore.services import documents as d
from longshore.services.app import NoResult

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
PROBLEM_TYPE_PREFIX = "urn:longshore:problem:"
_RETRY_AFTER_S = 1


@dataclass(eq=False)
class ApiProblem(Exception):
    """A request is answered with a problem."""

    status: int
    kind: str
    detail: str
    errors: Sequence[Problem] = ()
    headers: Mapping[str, str] = field(default_factory=dict)


def api_problem_of(error: LongshoreError) -> ApiProblem | None:
    """The problem for an error that an operation raised; None if no client should see it."""
    match error:
        case InvalidJob():
            return ApiProblem(422, "invalid", "the request has problems", error.problems)
        case AlreadyExists():
            return ApiProblem(422, "request-id-used", str(error))
        case NotFound():
            return ApiProblem(404, "not-found", str(error))
        case NoResult():
            return ApiProblem(409, "no-result", str(error))
        case CommandRefused():
            return ApiProblem(409, "refused", str(error))
        case Conflict():
            return ApiProblem(409, "conflict", f"{error}; read it again and decide again")
        case UsageError():
            return ApiProblem(400, "bad-request", str(error))
        case BackendUnavailable():
            again = {"Retry-After": str(_RETRY_AFTER_S)}
            detail = "the store cannot be reached now; the same request may be sent again"
            return ApiProblem(503, "unavailable", detail, headers=again)
    return None


def invalid_request(error: ValidationError | RequestValidationError) -> ApiProblem:
    """The problem for a request whose fields are not valid."""
    errors = [
        Problem(".".join(str(part) for part in entry["loc"]), entry["msg"])
        for entry in error.errors()
    ]
    return ApiProblem(422, "invalid", "the request has problems", errors)


def problem_document(request_id: str, problem: ApiProblem) -> d.ProblemDocument:
    """The problem as RFC 9457 has it."""
    errors = [
        d.FieldErrorDocument(path=entry.path, message=entry.message) for entry in problem.errors
    ]
    return d.ProblemDocument(
        type=PROBLEM_TYPE_PREFIX + problem.kind,
        title=HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=problem.detail,
        request_id=request_id,
        errors=errors or None,
    )


def problem_response(request_id: str, problem: ApiProblem) -> Response:
    """The response to a request that has a problem."""
    document = d.encode(problem_document(request_id, problem))
    return Response(document, problem.status, problem.headers, media_type=MEDIA_TYPE)


def add_error_handlers(app: FastAPI) -> None:
    """Let the app answer every error with a problem."""

    @app.exception_handler(ApiProblem)
    async def handle_problem(request: Request, error: ApiProblem) -> Response:
        return problem_response(request.state.request_id, error)

    @app.exception_handler(LongshoreError)
    async def handle_longshore_error(request: Request, error: LongshoreError) -> Response:
        if (problem := api_problem_of(error)) is None:
            raise error  # unexpected: the middleware answers
        if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            logger.warning("request.unavailable", extra={"error": str(error)})
        return problem_response(request.state.request_id, problem)

    @app.exception_handler(RequestValidationError)
    async def handle_invalid(request: Request, error: RequestValidationError) -> Response:
        return problem_response(request.state.request_id, invalid_request(error))

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> Response:
        kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        problem = ApiProblem(error.status_code, kind, error.detail, headers=error.headers or {})
        return problem_response(request.state.request_id, problem)
