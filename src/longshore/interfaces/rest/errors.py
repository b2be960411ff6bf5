"""Errors as RFC 9457 problem documents.

A problem says what happened, where, and what to do. An unexpected error is logged with its trace;
the client gets only the request's id, by which the log can be searched.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from longshore.errors import (
    AlreadyExists,
    BackendUnavailable,
    CommandRefused,
    Conflict,
    CursorLost,
    InvalidJob,
    NotAllowed,
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


def api_problem_of(error: Exception) -> ApiProblem | None:
    """The problem that answers an error; None if no client should see it."""
    match error:
        case ApiProblem():
            return error
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
        case NotAllowed():
            return ApiProblem(403, "not-allowed", str(error))
        case CursorLost():
            return ApiProblem(400, "cursor-lost", str(error))
        case UsageError():
            return ApiProblem(400, "bad-request", str(error))
        case BackendUnavailable():
            again = {"Retry-After": str(_RETRY_AFTER_S)}
            detail = "the store cannot be reached now; the same request may be sent again"
            return ApiProblem(503, "unavailable", detail, headers=again)
        case RequestValidationError():
            errors = [
                Problem(".".join(str(part) for part in entry["loc"]), entry["msg"])
                for entry in error.errors()
            ]
            return ApiProblem(422, "invalid", "the request has problems", errors)
        case HTTPException():
            kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
            headers = error.headers or {}
            return ApiProblem(error.status_code, kind, error.detail, headers=headers)
    return None


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


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error with its problem; an unexpected one is answered by the middleware."""
    if (problem := api_problem_of(error)) is None:
        raise error
    if problem.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        logger.warning("request.unavailable", extra={"error": str(error)})
    return problem_response(request.state.request_id, problem)
