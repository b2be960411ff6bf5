"""Queues over HTTP: the operator pauses them, and every tenant sees that."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.api_keys import ApiScope
from tests.interfaces.rest.server import FAST_WORKER, a_task, async_test, run_server


@async_test
async def test_no_task_of_a_paused_queue_starts_until_the_queue_is_resumed(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        paused = (await server.post("/v1/queues/default/pause", {"reason": "repairs"})).json()
    serves_both = replace(FAST_WORKER, queues=("default", "other"))
    async with run_server(tmp_path, with_worker=True, others={"worker": serves_both}) as server:
        paused_job = await server.submit(a_task("a"))
        free = await server.submit(a_task("a", queue="other"))
        await server.until(free, "completed")
        reasons = (await server.get(f"/v1/jobs/{paused_job}/tasks/a/why")).json()["reasons"]
        listed = (await server.get("/v1/queues")).json()

        resumed = await server.post("/v1/queues/default/resume")

        assert (paused["name"], paused["by"], paused["reason"]) == ("default", "ann", "repairs")
        assert listed == {"paused": [paused]}
        assert "queue_paused" in [reason["code"] for reason in reasons]
        assert resumed.json() == paused
        await server.until(paused_job, "completed")
        assert (await server.get("/v1/queues")).json() == {"paused": []}


@async_test
async def test_a_second_pause_changes_nothing_and_a_queue_is_resumed_once(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        bob = {"x-api-key": await server.key(ApiScope.ADMIN, name="bob")}

        first = await server.post("/v1/queues/mail/pause")
        second = await server.post("/v1/queues/mail/pause", {"reason": "mine"}, headers=bob)
        resumed = await server.post("/v1/queues/mail/resume", headers=bob)
        again = await server.post("/v1/queues/mail/resume")

        assert (first.json()["reason"], second.json()) == (None, first.json())
        assert resumed.json() == first.json()
        assert (again.status_code, again.json()["type"]) == (409, "urn:longshore:problem:refused")


@async_test
async def test_a_held_queue_is_shown_with_its_end_and_can_be_resumed(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        now = server.services.backend.clock.now()
        await server.services.backend.queue_controls.hold(
            "default", until=now + timedelta(minutes=5), by="worker-1", reason="limit", now=now
        )
        job_id = await server.submit(a_task("a"))

        (queue,) = (await server.get("/v1/queues")).json()["paused"]
        reasons = (await server.get(f"/v1/jobs/{job_id}/tasks/a/why")).json()["reasons"]
        resumed = await server.post("/v1/queues/default/resume")

        assert (queue["name"], queue["by"], queue["reason"]) == ("default", "worker-1", "limit")
        assert queue["until"] > queue["at"]
        (why,) = [reason for reason in reasons if reason["code"] == "queue_held"]
        assert (why["until"], why["remedy"]) == (queue["until"], "longshore queues resume default")
        assert resumed.json() == queue
        assert (await server.get("/v1/queues")).json() == {"paused": []}


@async_test
async def test_only_administrators_of_the_operator_tenant_may_pause_and_all_may_list(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        await server.post("/v1/queues/held/pause")
        ordinary = (ApiScope.READ, ApiScope.SUBMIT, ApiScope.OPERATE)
        keys = [
            await server.key(*ordinary),
            await server.key(*ordinary, tenant="globex"),
            await server.key(ApiScope.ADMIN, tenant="globex"),
        ]

        for key in keys:
            headers = {"x-api-key": key}
            for path in ("/v1/queues/default/pause", "/v1/queues/held/resume"):
                answer = await server.post(path, headers=headers)
                assert (answer.status_code, answer.json()["type"]) == (
                    403,
                    "urn:longshore:problem:not-allowed",
                )
            listed = (await server.get("/v1/queues", headers=headers)).json()["paused"]
            assert [queue["name"] for queue in listed] == ["held"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/queues/a.b/pause", {}, "path.name"),
        ("/v1/queues/a/pause", {"reason": "x" * 1_001}, "reason"),
        ("/v1/queues/a/pause", {"why": "x"}, "why"),
        ("/v1/queues/a.b/resume", None, "path.name"),
    ],
)
@async_test
async def test_an_invalid_pause_is_refused_with_the_path_of_the_field(
    path: str, body: object, field: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.post(path, body)

        assert answer.status_code == 422
        assert [error["path"] for error in answer.json()["errors"]] == [field]
        assert (await server.get("/v1/queues")).json() == {"paused": []}
