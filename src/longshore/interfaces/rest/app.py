"""The ASGI app: routes, middleware, probes, and the OpenAPI document."""

from __future__ import annotations

from collections import Counter

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from longshore.errors import LongshoreError
from longshore.interfaces.rest.auth import RestServices
from longshore.interfaces.rest.errors import ApiProblem, answer_error
from longshore.interfaces.rest.middleware import HostCheckMiddleware
from longshore.interfaces.rest.routes import events, jobs, operators
from longshore.settings.model import ApiSettings

VERSION = "v1"
_GZIP_MINIMUM_BYTES = 1_000
_ROUTERS = (
    *(jobs.router, jobs.task_router, events.output_router, events.router),
    *(operators.definition_router, operators.dead_letter_router, operators.queue_router),
    *(jobs.budget_router, operators.health_router, operators.key_router, operators.schema_router),
)


def create_app(services: RestServices, api: ApiSettings) -> FastAPI:
    """The ASGI app."""
    app = FastAPI(
        title="Longshore",
        summary="A durable task runner: submit jobs, follow them, and operate them.",
        version=VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.state.streams = Counter()  # open ones by key
    app.state.streams_per_key = api.streams_per_key
    app.state.body_bytes = api.body_bytes
    app.state.bytes_in_flight = 0
    for router in _ROUTERS:
        app.include_router(router, prefix=f"/{VERSION}")
    app.include_router(operators.probe_router)
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_MINIMUM_BYTES)
    app.add_middleware(HostCheckMiddleware, hosts=api.hosts, access_log=api.access_log)
    for kind in (ApiProblem, LongshoreError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer_error)
    return app
