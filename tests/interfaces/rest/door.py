"""A real server on a port of its own, with real workers behind it if a test wants them."""

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import httpx

from longshore.core.keys import Scope
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.desk import Desk
from longshore.interfaces.rest.serving import bound, listening
from longshore.services.crew import Crew
from longshore.settings import Settings
from longshore.settings.api import ApiSettings
from longshore.settings.sections import WorkerSettings
from longshore.wiring import Services, wired

LIMIT_S = 60
TENANT = "acme"
QUICK = WorkerSettings(sweep_every="500ms", look_every="50ms", poll_wait="1s", drain_grace="500ms")


def scenario(play: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that hangs fails."""

    @wraps(play)
    def run(*args: Any, **named: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                await play(*args, **named)

        asyncio.run(bounded())

    return run


@dataclass
class Door:
    """The server, as its clients see it."""

    services: Services
    address: str
    client: httpx.AsyncClient
    keys: dict[str, str] = field(default_factory=dict)

    async def key(self, *scopes: Scope, tenant: str = TENANT, name: str = "ann") -> str:
        access = self.services.access
        _, text = await access.create(tenant, name=name, scopes=scopes, by="tests")
        return text

    async def send(self, method: str, path: str, body: Any = None, **named: Any) -> httpx.Response:
        """A request with a key that may do everything, unless another is given."""
        headers = {"x-api-key": self.keys["all"], **named.pop("headers", {})}
        if body is not None:
            named["content"] = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers.setdefault("content-type", "application/json")
        return await self.client.request(method, path, headers=headers, **named)

    async def get(self, path: str, **named: Any) -> httpx.Response:
        return await self.send("GET", path, **named)

    async def post(self, path: str, body: Any = None, **named: Any) -> httpx.Response:
        return await self.send("POST", path, body, **named)

    async def submit(self, *tasks: dict[str, Any], **named: Any) -> str:
        """The id of a new job."""
        answer = await self.post("/v1/jobs", {"tasks": list(tasks)}, **named)
        assert answer.status_code in (200, 201), answer.text
        job_id: str = answer.json()["jobId"]
        return job_id

    async def until_task(self, job_id: str, key: str, *statuses: str) -> dict[str, Any]:
        """A task when it has come so far."""
        while True:
            task: dict[str, Any] = (await self.get(f"/v1/jobs/{job_id}/tasks/{key}")).json()
            if task["status"] in statuses:
                return task
            await asyncio.sleep(0.02)  # another process works on it: nothing wakes us

    async def told(self, job_id: str, *types: str) -> list[dict[str, Any]]:
        """Events of a job and its tasks, in order; of these types, or all."""
        path, cursor, events = f"/v1/jobs/{job_id}/events", "", []
        while cursor is not None:
            page = (await self.get(path, params={"cursor": cursor, "limit": 200})).json()
            events += page["events"]
            cursor = page["cursor"]
        return [event for event in events if not types or event["eventType"] in types]

    async def until(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """The job when it has come so far."""
        while True:
            job: dict[str, Any] = (await self.get(f"/v1/jobs/{job_id}")).json()
            if job["status"] in statuses:
                return job
            await asyncio.sleep(0.02)  # another process works on it: nothing wakes us


@contextlib.asynccontextmanager
async def opened(
    folder: Path, *, working: bool = False, others: dict[str, Any] | None = None, **api: Any
) -> AsyncIterator[Door]:
    """A server; ``others`` are settings beside those of the API."""
    settings = settings_in(folder, api=ApiSettings(port=0, **api), **(others or {}))
    async with contextlib.AsyncExitStack() as stack:
        services = await stack.enter_async_context(wired(settings))
        app = create_app(
            desk_of(services), hosts=settings.api.hosts, body_bytes=settings.api.body_bytes
        )
        socket = bound(settings.api.host, settings.api.port)
        await stack.enter_async_context(listening(app, socket))
        address = f"http://127.0.0.1:{socket.getsockname()[1]}"
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=address, timeout=30))
        if working:
            crew = Crew(
                worker=services.worker(),
                dispatcher=services.dispatcher,
                sweeper=services.sweeper,
                presence=services.presence,
            )
            await stack.enter_async_context(crew)
        door = Door(services, address, client)
        door.keys["all"] = await door.key(Scope.ADMIN)
        yield door


def settings_in(folder: Path, **others: Any) -> Settings:
    return Settings(data_dir=folder, tenant=TENANT, **{"worker": QUICK, **others})


def desk_of(services: Services) -> Desk:
    services.access.belongs_to(services.settings.tenant)
    return Desk(
        backend=services.backend,
        documents=services.documents,
        producer=services.producer,
        adding=services.adding,
        cancelling=services.cancelling,
        resuming=services.resuming,
        reviewing=services.reviewing,
        budgeting=services.budgeting,
        explaining=services.explaining,
        dead_letters=services.dead_letters,
        health_check=services.health_check,
        access=services.access,
        environment=services.settings.environment,
        events_ttl_days=services.settings.limits.events_ttl_days,
    )


def a_task(key: str, *parents: str, argv: tuple[str, ...] = ("true",), **fields: Any) -> Any:
    task: dict[str, Any] = {"taskId": key, "name": "command", "input": {"argv": list(argv)}}
    if parents:
        task["dependsOn"] = list(parents)
    return {**task, **fields}


def packed(document: Any) -> bytes:
    return gzip.compress(json.dumps(document).encode())
