"""A real server on a port of its own, with real workers behind it if a test wants them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import httpx2

from longshore.core.api_keys import ApiScope
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.server import bind_socket, serve
from longshore.settings.model import ApiSettings, Settings, WorkerSettings
from longshore.testing.memory.backend import memory_backend
from longshore.wiring.services import Intervals, Services, open_services

TIMEOUT_S = 60
TENANT = "acme"
FAST_WORKER = WorkerSettings(poll_wait="1s", drain_grace="500ms")
FAST_INTERVALS = Intervals(
    sweep=timedelta(milliseconds=500), dead_worker_check=timedelta(milliseconds=50)
)


def async_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that hangs fails."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


@dataclass
class RestServer:
    """The server, as its clients see it."""

    services: Services
    address: str
    client: httpx2.AsyncClient
    keys: dict[str, str] = field(default_factory=dict)

    async def key(self, *scopes: ApiScope, tenant: str = TENANT, name: str = "ann") -> str:
        access = self.services.api_keys
        _, text = await access.create(tenant, name=name, scopes=scopes, by="tests")
        return text

    async def send(
        self, method: str, path: str, body: Any = None, **kwargs: Any
    ) -> httpx2.Response:
        """A request with a key that may do everything, unless another is given."""
        headers = {"x-api-key": self.keys["all"], **kwargs.pop("headers", {})}
        if body is not None:
            kwargs["content"] = body if isinstance(body, bytes) else json.dumps(body).encode()
            headers.setdefault("content-type", "application/json")
        return await self.client.request(method, path, headers=headers, **kwargs)

    async def get(self, path: str, **kwargs: Any) -> httpx2.Response:
        return await self.send("GET", path, **kwargs)

    async def post(self, path: str, body: Any = None, **kwargs: Any) -> httpx2.Response:
        return await self.send("POST", path, body, **kwargs)

    async def submit(self, *tasks: dict[str, Any], **kwargs: Any) -> str:
        """The id of a new job."""
        answer = await self.post("/v1/jobs", {"tasks": list(tasks)}, **kwargs)
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

    async def events(self, job_id: str, *types: str) -> list[dict[str, Any]]:
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
async def run_server(
    folder: Path,
    *,
    with_worker: bool = False,
    with_messages: bool = False,
    others: dict[str, Any] | None = None,
    **api: Any,
) -> AsyncIterator[RestServer]:
    """A server; ``others`` are settings beside those of the API.

    Args:
        with_messages: The store is in memory and has a queue of messages.
    """
    settings = settings_in(folder, api=ApiSettings(port=0, **api), **(others or {}))
    async with contextlib.AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            open_services(settings, intervals=FAST_INTERVALS)
        )
        if with_messages:
            services = replace(services, backend=memory_backend(services.backend.clock))
        services.api_keys.set_operator_tenant(settings.tenant)
        app = create_app(services, settings.api)
        socket = bind_socket(settings.api.host, settings.api.port)
        await stack.enter_async_context(serve(app, socket))
        address = f"http://127.0.0.1:{socket.getsockname()[1]}"
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=address, timeout=30))
        if with_worker:
            await stack.enter_async_context(services.worker_group())
        server = RestServer(services, address, client)
        server.keys["all"] = await server.key(ApiScope.ADMIN)
        yield server


def settings_in(folder: Path, **others: Any) -> Settings:
    return Settings(data_dir=folder, tenant=TENANT, **{"worker": FAST_WORKER, **others})


def a_task(key: str, *parents: str, argv: tuple[str, ...] = ("true",), **fields: Any) -> Any:
    task: dict[str, Any] = {"taskId": key, "name": "command", "input": {"argv": list(argv)}}
    if parents:
        task["dependsOn"] = list(parents)
    return {**task, **fields}
