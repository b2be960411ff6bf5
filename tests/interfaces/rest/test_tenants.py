"""Tenants do not meet: every route, with the ids of one tenant and the key of another."""

from pathlib import Path
from typing import Any

import httpx2

from longshore.core.api_keys import ApiScope
from longshore.settings.model import AgentSettings
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server

SECRET_TEXT = "only-for-acme"
OTHER = "globex"
MAKES = f"mkdir artifacts; echo {SECRET_TEXT} | tee artifacts/{SECRET_TEXT}.txt"
# What is sent along, so that each route would do something if it could.
BODIES: dict[str, Any] = {
    "post /v1/jobs": {"tasks": [a_task("own")]},
    "post /v1/jobs/batch": {"jobs": [{"job": {"tasks": [a_task("own")]}, "requestId": "own"}]},
    "post /v1/jobs/prune": {"olderThan": "0s"},
    "post /v1/jobs/{job_id}/tasks": {"tasks": [a_task("intruder")]},
    "post /v1/jobs/{job_id}/tasks/{task_id}/revise": {"feedback": "worse"},
    "post /v1/dead-letters/replay": {"matching": {}},
    "post /v1/keys": {"name": "own", "scopes": ["read"]},
    "put /v1/task-definitions/{name}": {"runner": "command"},
    "post /v1/queues/{name}/pause": {"reason": "to be a nuisance"},
    "post /v1/budget": {"usd": 1},
    "post /v1/jobs/{job_id}/budget": {"usd": 1},
    "post /v1/jobs/{job_id}/tasks/{task_id}/budget": {"usd": 1},
}
# Routes that must be asked something.
QUERIES = {"/v1/ids": "?prefix=job-"}
# Here a tenant may do what it likes under a name that another has too.
OWN = {
    "get /live",
    "get /ready",
    "get /v1/jobs",
    "post /v1/jobs",
    "post /v1/jobs/batch",
    "post /v1/jobs/prune",
    "get /v1/task-definitions",
    "put /v1/task-definitions/{name}",
    "delete /v1/task-definitions/{name}",
    "get /v1/task-definitions/{name}/versions",
    "get /v1/dead-letters",
    "post /v1/dead-letters/replay",
    "get /v1/keys",
    "post /v1/keys",
    "get /v1/tasks",
    "get /v1/ids",
    "get /v1/events",
    "get /v1/dead-letters/counts",
    "post /v1/health-check",
    "get /v1/budget",
    "post /v1/budget",
    # A pause affects all tenants, so all may read it.
    "get /v1/queues",
}
# These affect the work of all tenants: only the operator tenant may call them.
OPERATOR_ROUTES = {"post /v1/queues/{name}/pause", "post /v1/queues/{name}/resume"}


async def _everything_of_acme(server: RestServer) -> dict[str, str]:
    """One of each kind; the ids by the names of path parameters."""
    job_id = await server.submit(
        a_task("done", argv=("sh", "-c", MAKES)),
        a_task("dead", argv=("sh", "-c", f"echo {SECRET_TEXT} >&2; exit 1")),
        headers={"Idempotency-Key": SECRET_TEXT},
    )
    definition = {"runner": "command", "description": SECRET_TEXT}
    await server.send("PUT", f"/v1/task-definitions/{SECRET_TEXT}", definition)
    key = (await server.post("/v1/keys", {"name": SECRET_TEXT, "scopes": ["read"]})).json()
    await server.until(job_id, "failed")
    await server.post("/v1/health-check")
    await server.post("/v1/queues/idle/pause", {"reason": "repairs"})
    letter = (await server.get("/v1/dead-letters")).json()["deadLetters"][0]
    return {
        "job_id": job_id,
        "task_id": "done",
        "name": SECRET_TEXT,
        "letter_id": letter["id"],
        "key_id": key["id"],
    }


def _filled(path: str, ids: dict[str, str]) -> str:
    if "/artifacts/" in path:
        ids = {**ids, "name": f"attempt-1/artifacts/{SECRET_TEXT}.txt"}
    if path.startswith("/v1/queues/"):
        ids = {**ids, "name": "default" if path.endswith("/pause") else "idle"}
    return path.format(**ids) + QUERIES.get(path, "")


async def _seen_by_acme(
    server: RestServer, routes: dict[str, Any], ids: dict[str, str]
) -> dict[str, str]:
    seen = {}
    for path, methods in routes.items():
        if "get" in methods:
            seen[path] = (await server.get(_filled(path, ids))).text
    return seen


@async_test
async def test_no_route_shows_or_changes_data_of_another_tenant(tmp_path: Path) -> None:
    a_day = {"agent": AgentSettings(usd_per_day=10)}
    async with run_server(tmp_path, with_worker=True, others=a_day) as server:
        ids = await _everything_of_acme(server)
        routes = (await server.get("/v1/openapi.json")).json()["paths"]
        before = await _seen_by_acme(server, routes, ids)
        assert sum(SECRET_TEXT in text for text in before.values()) >= 15
        assert {path for path, text in before.items() if '"problem' in text} == set()
        assert {route.partition(" ")[2] for route in (*OWN, *OPERATOR_ROUTES)} <= set(routes)
        other_key = await server.key(ApiScope.ADMIN, tenant=OTHER, name="eve")

        walked = 0
        for path, methods in routes.items():
            for method in methods:
                route = f"{method} {path}"
                headers = {"x-api-key": other_key, "Idempotency-Key": SECRET_TEXT}
                answer: httpx2.Response = await server.send(
                    method.upper(), _filled(path, ids), BODIES.get(route), headers=headers
                )
                walked += 1
                assert SECRET_TEXT not in _without_names(answer.text), route
                if route in OWN:
                    assert answer.status_code < 300, (route, answer.text)
                elif route in OPERATOR_ROUTES:
                    assert answer.status_code == 403, (route, answer.text)
                else:
                    assert answer.status_code == 404, (route, answer.text)

        assert walked >= 51
        after = await _seen_by_acme(server, routes, ids)
        assert after == before


@async_test
async def test_only_the_operator_of_the_installation_creates_the_first_key_of_a_tenant(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        first = {"name": "first", "scopes": ["admin"], "tenant": OTHER}

        created = await server.post("/v1/keys", first)

        headers = {"x-api-key": created.json()["key"]}
        names = [
            key["name"] for key in (await server.get("/v1/keys", headers=headers)).json()["keys"]
        ]
        assert (created.status_code, names) == (201, ["first"])
        for tenant in ("third", "default"):
            answer = await server.post("/v1/keys", {**first, "tenant": tenant}, headers=headers)
            assert answer.status_code == 400
            assert "operates this installation" in answer.json()["detail"]
        assert (await server.post("/v1/keys", first, headers=headers)).status_code == 201
        submit_only = {"x-api-key": await server.key(ApiScope.SUBMIT)}
        assert (await server.post("/v1/keys", first, headers=submit_only)).status_code == 403
        assert (await server.post("/v1/keys", {**first, "tenant": "a/b"})).status_code == 422


def _without_names(text: str) -> str:
    """The text of an answer without the names that the other tenant sent itself."""
    for name in ("no definition '{}'", '"name":"{}"', '"requestId":"{}"', "no artifact '{}'"):
        text = text.replace(name.format(SECRET_TEXT), "")
        text = text.replace(name.format(f"attempt-1/artifacts/{SECRET_TEXT}.txt"), "")
    return text
