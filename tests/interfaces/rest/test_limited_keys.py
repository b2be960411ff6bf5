"""A key that is limited to definitions and queues starts nothing else, by any route."""

from pathlib import Path
from typing import Any

import httpx2

from longshore.core.api_keys import ApiScope, WorkLimits
from longshore.interfaces.rest.app import create_app
from longshore.settings.model import ApiSettings
from tests.interfaces.rest.server import a_task, async_test, run_server
from tests.interfaces.test_application import TENANT, URL, full_store, job_id

# What is sent along, so that each route would start something if it could.
BODIES: dict[str, Any] = {
    "post /v1/jobs": {"tasks": [a_task("own")]},
    "post /v1/jobs/batch": {"jobs": [{"job": {"tasks": [a_task("own")]}, "requestId": "own"}]},
    "post /v1/jobs/{job_id}/tasks": {"tasks": [a_task("more")]},
    "post /v1/jobs/{job_id}/resume": {"tasks": ["x"]},
    "post /v1/jobs/{job_id}/tasks/{task_id}/revise": {"feedback": "worse"},
    "post /v1/dead-letters/replay": {"matching": {}},
    "put /v1/task-definitions/{name}": {"runner": "command"},
    "post /v1/jobs/{job_id}/tasks/{task_id}/budget": {"usd": 1},
}
STARTS_WORK = {*BODIES, "post /v1/jobs/{job_id}/tasks/{task_id}/approve"} | {
    "delete /v1/task-definitions/{name}"
}
# Each task of the job that is parked is checked: `test_budgets` has one.
CHECKED_BY_TASK = {"post /v1/jobs/{job_id}/budget"}
STARTS_NOTHING = {
    "post /v1/jobs/{job_id}/cancel",
    "post /v1/jobs/{job_id}/tasks/{task_id}/cancel",
    "post /v1/health-check",
    "delete /v1/dead-letters/{letter_id}",
}
NEEDS_ADMIN = {
    "post /v1/jobs/prune",
    "post /v1/keys",
    "delete /v1/keys/{key_id}",
    "post /v1/budget",
    "post /v1/queues/{name}/pause",
    "post /v1/queues/{name}/resume",
}


@async_test
async def test_no_route_starts_what_a_limited_key_may_not_start() -> None:
    store = await full_store()
    scopes = {*ApiScope} - {ApiScope.ADMIN}
    limits = WorkLimits(definitions=frozenset({"other"}), queues=frozenset({"other"}))
    _, key = await store.services.api_keys.create(
        TENANT, name="ci", scopes=scopes, by="setup", limits=limits
    )
    app = create_app(store.services, ApiSettings(hosts=("*",)))
    transport = httpx2.ASGITransport(app=app)
    ids = {"job_id": job_id("failed"), "task_id": "x", "name": "report"}
    async with httpx2.AsyncClient(
        transport=transport, base_url=URL, headers={"x-api-key": key}
    ) as client:
        routes = (await client.get("/v1/openapi.json")).json()["paths"]
        writing = {
            f"{method} {path}" for path in routes for method in routes[path] if method != "get"
        }
        assert writing == STARTS_WORK | CHECKED_BY_TASK | STARTS_NOTHING | NEEDS_ADMIN
        before = (await client.get("/v1/jobs")).json()
        for route in sorted(STARTS_WORK | NEEDS_ADMIN):
            method, path = route.split()
            path = path.format(**ids, key_id="none")
            answer = await client.request(method, path, json=BODIES.get(route, {}))

            if route.endswith("/batch"):
                (item,) = answer.json()["answers"]
                assert (answer.status_code, item["problem"]["status"]) == (200, 403)
                detail = item["problem"]["detail"]
            else:
                assert answer.status_code == 403, (route, answer.text)
                detail = answer.json()["detail"]
            if route in STARTS_WORK:
                only = "this key may only start tasks of the definitions other in the queues other"
                assert only in detail, route
        assert (await client.get("/v1/jobs")).json() == before


@async_test
async def test_the_built_in_definitions_can_be_switched_off_for_the_api(tmp_path: Path) -> None:
    async with run_server(tmp_path, builtin_definitions=False) as server:
        await server.send(
            "PUT", "/v1/task-definitions/hi", {"runner": "command", "options": {"argv": ["true"]}}
        )
        function = {"taskId": "b", "name": "python", "input": {"function": "os:getpid"}}
        refused = await server.post("/v1/jobs", {"tasks": [a_task("a"), function]})
        job_id = await server.submit({"taskId": "a", "name": "hi"})
        added = await server.post(f"/v1/jobs/{job_id}/tasks", {"tasks": [a_task("c")]})
        batch = await server.post(
            "/v1/jobs/batch",
            {"jobs": [{"job": {"tasks": [a_task("a")]}}, {"job": {"tasks": [{**HI}]}}]},
        )
        # This process itself, like the command line on the data folder.
        local = await server.services.application().submit({"tasks": [a_task("a")]})

    assert (refused.status_code, added.status_code) == (422, 422)
    assert [item["path"] for item in refused.json()["errors"]] == ["tasks[0].name", "tasks[1].name"]
    for item in (*refused.json()["errors"], *added.json()["errors"]):
        assert "switched off for the API (the setting api.builtin_definitions)" in item["message"]
        assert "`longshore definitions list`" in item["message"]
    first, second = batch.json()["answers"]
    assert first["problem"]["status"] == 422
    assert second["job"]["created"]
    assert local.created


HI = {"taskId": "a", "name": "hi"}
