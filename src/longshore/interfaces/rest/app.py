"""The ASGI app: routes, middleware, probes, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI, Response
from starlette.middleware.gzip import GZipMiddleware

from longshore.interfaces.rest.auth import Reader, RestServices
from longshore.interfaces.rest.errors import add_error_handlers
from longshore.interfaces.rest.middleware import HostCheckMiddleware
from longshore.interfaces.rest.openapi import answers, openapi_document, respond
from longshore.interfaces.rest.routes import (
    budgets,
    dead_letters,
    definitions,
    events,
    health,
    jobs,
    keys,
    output,
    queues,
    tasks,
)
from longshore.services import documents as d

VERSION = "v1"
_GZIP_MINIMUM_BYTES = 1_000
_ROUTE_MODULES = (
    jobs,
    tasks,
    output,
    events,
    definitions,
    dead_letters,
    queues,
    budgets,
    health,
    keys,
)


def create_app(services: RestServices, *, hosts: Collection[str], body_bytes: int) -> FastAPI:
    """The ASGI app.

    Args:
        hosts: The host names of this server; ``*``: any name.
        body_bytes: The largest request body.
    """
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
    app.state.body_bytes = body_bytes
    for module in _ROUTE_MODULES:
        app.include_router(module.router, prefix=f"/{VERSION}")
    app.include_router(_openapi_router(app), prefix=f"/{VERSION}")
    app.include_router(_probe_router())
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_MINIMUM_BYTES)
    app.add_middleware(HostCheckMiddleware, hosts=hosts)
    add_error_handlers(app)
    return app


def _openapi_router(app: FastAPI) -> APIRouter:
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(operations: Reader) -> Any:
        return openapi_document(app)

    return router


def _probe_router() -> APIRouter:
    router = APIRouter(tags=["probes"])

    @router.get("/live", **answers(d.ProbeDocument))
    async def live() -> Response:
        """Check that the server runs. Needs no key."""
        return respond(d.ProbeDocument())

    @router.get("/ready", **answers(d.ProbeDocument))
    async def ready(operations: Reader) -> Response:
        """Check that the server can answer requests: its store can be read."""
        return respond(await operations.check_ready())

    return router
