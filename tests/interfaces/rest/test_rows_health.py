"""Health and alerts over HTTP: H1, H2, H3."""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope
from tests.adapters.alerts.server import Answer, Received, Server
from tests.interfaces.rest.server import FAST_WORKER, RestServer, a_task, async_test, run_server

SECRET = "a secret of thirty-two bytes or more"
LONG = {"argv": ["sleep", "1000"]}
# Some limits are a few milliseconds, so that the tests need not wait.
KINDS: dict[str, dict[str, str]] = {
    "overtime": {"longestRun": "1ms"},
    "critical": {"healthyWithin": "1ms", "warningWithin": "2ms"},
    "warning": {"healthyWithin": "1ms", "warningWithin": "10h"},
    "healthy": {"longestRun": "10h", "healthyWithin": "5h"},
}
EIGHT_SLOTS = replace(FAST_WORKER, concurrency=8)


@contextlib.asynccontextmanager
async def running(
    folder: Path, *kinds: str, **others: Any
) -> AsyncIterator[tuple[RestServer, dict[str, str]]]:
    """A server with a running task of each kind, and their ids."""
    async with run_server(
        folder, with_worker=True, others={"worker": EIGHT_SLOTS, **others}
    ) as rest_server:
        for kind in kinds:
            definition = {"runner": "command", "overridable": ["argv"], "health": KINDS[kind]}
            await rest_server.send("PUT", f"/v1/task-definitions/{kind}", definition)
        job_id = await rest_server.submit(
            *({"taskId": kind, "name": kind, "input": LONG} for kind in kinds)
        )
        for kind in kinds:
            await until_seen(rest_server, job_id, kind)
        yield rest_server, {f"{job_id}_{kind}": kind for kind in kinds}
        await rest_server.post(f"/v1/jobs/{job_id}/cancel")
        await rest_server.until(job_id, "cancelled")


async def until_seen(server: RestServer, job_id: str, key: str) -> dict[str, Any]:
    """The health of a running task once it has been silent for more than 10 ms."""
    while True:
        health: dict[str, Any] = (await server.get(f"/v1/jobs/{job_id}/tasks/{key}/health")).json()
        if (health["silentMs"] or 0) > 10:
            return health
        await asyncio.sleep(0.005)  # another process works on it


@async_test
async def test_a_check_reports_each_running_task_once_by_the_limits_of_its_definition(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, *KINDS) as (rest_server, kinds):
        await rest_server.send(
            "PUT",
            "/v1/task-definitions/reviewed",
            {
                "runner": "command",
                "overridable": ["argv"],
                "requiresReview": True,
                "health": KINDS["overtime"],
            },
        )
        beside = await rest_server.submit(
            {"taskId": "reviewed", "name": "reviewed", "input": {"argv": ["true"]}},
            a_task("pending", delay=1_000),
            a_task("waiting", "pending"),
            a_task("done"),
        )
        await rest_server.until_task(beside, "reviewed", "in_review")
        await rest_server.until_task(beside, "done", "completed")

        report = (await rest_server.post("/v1/health-check")).json()

        # What waits, is in review or is over is not stuck, and so not there.
        assert {task["requestId"]: task["health"] for task in report["tasks"]} == kinds
        assert len(report["tasks"]) == len(kinds)
        assert [task["health"] for task in report["tasks"]] == list(KINDS)
        assert report["summary"] == {"totalProcessing": 4, **dict.fromkeys(KINDS, 1)}


@async_test
async def test_the_periodic_check_runs_and_writes_an_event(tmp_path: Path) -> None:
    async with running(tmp_path, "overtime", health={"every": "1s"}) as (rest_server, kinds):
        never = await rest_server.get("/v1/health-check")
        clock = asyncio.ensure_future(rest_server.services.health_check.run())
        try:
            while (last := await rest_server.get("/v1/health-check")).status_code == 404:
                await asyncio.sleep(0.05)  # by the real clock: nothing wakes us
        finally:
            clock.cancel()
            await asyncio.gather(clock, return_exceptions=True)

        (event, *_) = (await rest_server.get("/v1/events?eventType=Task Health Check")).json()[
            "events"
        ]

        assert never.status_code == 404
        assert {task["requestId"] for task in last.json()["tasks"]} == set(kinds)
        assert (event["entityType"], event["entityId"]) == ("SYSTEM", "health-check")


@async_test
async def test_a_requested_check_writes_an_event(tmp_path: Path) -> None:
    async with running(tmp_path, "critical") as (rest_server, _):
        report = (await rest_server.post("/v1/health-check")).json()

        path = "/v1/events?entity=SYSTEM%23health-check"
        (event,) = (await rest_server.get(path)).json()["events"]
        assert {**event["properties"], "checkedAt": report["checkedAt"]} == report
        assert (await rest_server.get("/v1/health-check")).json() == report
        (task,) = report["tasks"]
        assert task["lastEventType"] == "Task Processing Started"
        assert task["elapsed"] >= task["timeSinceLastEvent"] > 0


@async_test
async def test_reading_the_health_of_a_task_writes_no_report(tmp_path: Path) -> None:
    async with running(tmp_path, "critical") as (rest_server, kinds):
        (task_id,) = kinds
        job_id, _, key = task_id.partition("_")

        health = (await rest_server.get(f"/v1/jobs/{job_id}/tasks/{key}/health")).json()

        assert (health["status"], health["health"]) == ("processing", "critical")
        assert health["workerId"] is not None
        assert (await rest_server.get("/v1/health-check")).status_code == 404


@async_test
async def test_only_a_key_that_may_operate_can_start_a_health_check(tmp_path: Path) -> None:
    async with run_server(tmp_path) as rest_server:
        for scope, status in (
            (ApiScope.READ, 403),
            (ApiScope.SUBMIT, 403),
            (ApiScope.OPERATE, 200),
        ):
            headers = {"x-api-key": await rest_server.key(scope)}
            answer = await rest_server.post("/v1/health-check", headers=headers)
            assert answer.status_code == status


def _signed(received: Received) -> bool:
    at, _, rest = received.headers["longshore-signature"].partition(",")
    signed = f"{at.removeprefix('t=')}.".encode() + received.body
    signature = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    return f"v1={signature}" in rest.split(",")


@async_test
async def test_an_alert_is_sent_once_for_a_problem_and_once_for_its_end(tmp_path: Path) -> None:
    with Server().running() as server:
        alerts = {"webhook_url": server.url, "webhook_secrets": [SECRET]}
        async with running(tmp_path, *KINDS, alerts=alerts) as (rest_server, kinds):
            for _ in range(3):
                assert (await rest_server.post("/v1/health-check")).status_code == 200
            first = list(server.received)
            (gone,) = (task_id for task_id, kind in kinds.items() if kind == "overtime")
            job_id, _, key = gone.partition("_")
            await rest_server.post(f"/v1/jobs/{job_id}/tasks/{key}/cancel")
            await rest_server.until_task(job_id, key, "cancelled")
            await rest_server.post("/v1/health-check")

            assert [_signed(received) for received in first] == [True]
            assert gone in first[0].body.decode()
            assert [_signed(received) for received in server.received[1:]] == [True]
            assert gone in server.received[1].body.decode()


@pytest.mark.parametrize("answer", [Answer(status=500), Answer(status=404), Answer(hangs_up=True)])
@async_test
async def test_an_alert_that_cannot_be_delivered_fails_no_check_and_is_delivered_later(
    answer: Answer, tmp_path: Path
) -> None:
    with Server().running() as server:
        server.answers_with(answer)
        alerts = {"webhook_url": server.url, "webhook_secrets": [SECRET], "timeout": "2s"}
        async with running(tmp_path, "overtime", alerts=alerts) as (rest_server, kinds):
            failing = await rest_server.post("/v1/health-check")
            before = len(server.received)
            server.answers_with(Answer())
            for _ in range(2):
                assert (await rest_server.post("/v1/health-check")).status_code == 200

            assert failing.status_code == 200
            assert {task["requestId"] for task in failing.json()["tasks"]} == set(kinds)
            assert before >= 1
            assert len(server.received) == before + 1
