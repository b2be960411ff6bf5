"""The app: routes, what stands before them, and the document that describes them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.gzip import GZipMiddleware

from longshore.interfaces.rest import (
    budgets,
    dead_letters,
    definitions,
    events,
    health,
    jobs,
    keys,
    lookups,
    output,
    queues,
    tasks,
    wishes,
)
from longshore.interfaces.rest import schemas as s
from longshore.interfaces.rest.answers import problems
from longshore.interfaces.rest.callers import Reader
from longshore.interfaces.rest.desk import AtDesk, Desk
from longshore.interfaces.rest.gate import Gate
from longshore.interfaces.rest.problems import add_handlers

VERSION = "v1"
_PACKED_FROM_BYTES = 1_000
# Read by the routes themselves, so the framework does not know of them.
_DESCRIBED = (
    s.ProblemDocument,
    s.JobRequestDocument,
    s.TasksDocument,
    s.CancelDocument,
    s.ResumeDocument,
    s.ApproveDocument,
    s.ReviseDocument,
    s.KeyRequestDocument,
    s.ReplayDocument,
    s.DefinitionRequestDocument,
    s.PauseDocument,
    s.AddBudgetDocument,
)
_PARTS = (
    jobs,
    tasks,
    wishes,
    output,
    events,
    lookups,
    definitions,
    dead_letters,
    queues,
    budgets,
    health,
    keys,
)


def create_app(desk: Desk, *, hosts: Collection[str], body_bytes: int) -> FastAPI:
    """The ASGI app.

    Args:
        hosts: By which names this server may be called; ``*``: by any.
        body_bytes: How large a request's body may be.
    """
    app = FastAPI(
        title="Longshore",
        summary="Runs work that must not be lost and must not happen twice.",
        version=VERSION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.desk = desk
    app.state.body_bytes = body_bytes
    for module in _PARTS:
        app.include_router(module.router, prefix=f"/{VERSION}")
    app.include_router(_about(app), prefix=f"/{VERSION}")
    app.include_router(_probes())
    app.add_middleware(GZipMiddleware, minimum_size=_PACKED_FROM_BYTES)
    app.add_middleware(Gate, hosts=hosts)
    add_handlers(app)
    return app


def _about(app: FastAPI) -> APIRouter:
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi(caller: Reader) -> Any:
        return described(app)

    return router


def _probes() -> APIRouter:
    router = APIRouter(tags=["probes"])

    @router.get("/live", response_model=s.Alive)
    async def live() -> Any:
        """Whether the server runs; the one thing that needs no key."""
        return {"status": "ok"}

    @router.get("/ready", response_model=s.Alive, responses=problems())
    async def ready(desk: AtDesk, caller: Reader) -> Any:
        """Whether requests can be answered: the store is there and reads."""
        await desk.backend.ledger.list_jobs(caller.tenant, limit=1)
        return {"status": "ok"}

    return router


def described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document of the app."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, summary=app.summary, version=app.version, routes=app.routes
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        for shape in _DESCRIBED:
            made = shape.model_json_schema(ref_template="#/components/schemas/{model}")
            for name, inner in made.pop("$defs", {}).items():
                schemas.setdefault(name, inner)
            schemas[shape.__name__] = made
        app.openapi_schema = document
    return app.openapi_schema
