"""Health and alerts through the HTTP door: H1, H2, H3."""

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope
from tests.adapters.alerts.server import Answer, Received, Server
from tests.interfaces.rest.server import FAST_WORKER, RestServer, a_task, async_test, run_server

SECRET = "a secret of thirty-two bytes or more"
LONG = {"argv": ["sleep", "1000"]}
# What counts as long or silent is a matter of milliseconds for some, so that nobody has to wait.
KINDS: dict[str, dict[str, str]] = {
    "overtime": {"longestRun": "1ms"},
    "critical": {"healthyWithin": "1ms", "warningWithin": "2ms"},
    "warning": {"healthyWithin": "1ms", "warningWithin": "10h"},
    "healthy": {"longestRun": "10h", "healthyWithin": "5h"},
}
EIGHT_SLOTS = FAST_WORKER.model_copy(update={"concurrency": 8})


@contextlib.asynccontextmanager
async def running(
    folder: Path, *kinds: str, **others: Any
) -> AsyncIterator[tuple[RestServer, dict[str, str]]]:
    """A door with a running task of each kind, and their ids."""
    async with run_server(
        folder, with_worker=True, others={"worker": EIGHT_SLOTS, **others}
    ) as door:
        for kind in kinds:
            definition = {"runner": "command", "health": KINDS[kind]}
            await door.send("PUT", f"/v1/task-definitions/{kind}", definition)
        job_id = await door.submit(
            *({"taskId": kind, "name": kind, "input": LONG} for kind in kinds)
        )
        for kind in kinds:
            await until_seen(door, job_id, kind)
        yield door, {f"{job_id}_{kind}": kind for kind in kinds}
        await door.post(f"/v1/jobs/{job_id}/cancel")
        await door.until(job_id, "cancelled")


async def until_seen(server: RestServer, job_id: str, key: str) -> dict[str, Any]:
    """A running task's health when it has been silent for longer than some may be."""
    while True:
        found: dict[str, Any] = (await server.get(f"/v1/jobs/{job_id}/tasks/{key}/health")).json()
        if (found["silentMs"] or 0) > 10:
            return found
        await asyncio.sleep(0.005)  # another process works on it


@async_test
async def test_a_check_sees_each_running_task_once_as_its_definition_judges_it(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, *KINDS) as (door, kinds):
        await door.send(
            "PUT",
            "/v1/task-definitions/reviewed",
            {"runner": "command", "requiresReview": True, "health": KINDS["overtime"]},
        )
        beside = await door.submit(
            {"taskId": "reviewed", "name": "reviewed", "input": {"argv": ["true"]}},
            a_task("pending", delay=1_000),
            a_task("waiting", "pending"),
            a_task("done"),
        )
        await door.until_task(beside, "reviewed", "in_review")
        await door.until_task(beside, "done", "completed")

        report = (await door.post("/v1/health-check")).json()

        # What waits, is in review or is over is not stuck, and so not there.
        assert {task["requestId"]: task["health"] for task in report["tasks"]} == kinds
        assert len(report["tasks"]) == len(kinds)
        assert [task["health"] for task in report["tasks"]] == list(KINDS)
        assert report["summary"] == {"totalProcessing": 4, **dict.fromkeys(KINDS, 1)}


@async_test
async def test_the_clock_checks_by_itself_and_tells_history(tmp_path: Path) -> None:
    async with running(tmp_path, "overtime", health={"every": "1s"}) as (door, kinds):
        never = await door.get("/v1/health-check")
        clock = asyncio.ensure_future(door.services.health_check.run())
        try:
            while (last := await door.get("/v1/health-check")).status_code == 404:
                await asyncio.sleep(0.05)  # by the real clock: nothing wakes us
        finally:
            clock.cancel()
            await asyncio.gather(clock, return_exceptions=True)

        (event, *_) = (await door.get("/v1/events?eventType=Task Health Check")).json()["events"]

        assert never.status_code == 404
        assert {task["requestId"] for task in last.json()["tasks"]} == set(kinds)
        assert (event["entityType"], event["entityId"]) == ("SYSTEM", "health-check")


@async_test
async def test_a_check_by_hand_is_an_event_like_any_other(tmp_path: Path) -> None:
    async with running(tmp_path, "critical") as (door, _):
        report = (await door.post("/v1/health-check")).json()

        path = "/v1/events?entity=SYSTEM%23health-check"
        (event,) = (await door.get(path)).json()["events"]
        assert {**event["properties"], "checkedAt": report["checkedAt"]} == report
        assert (await door.get("/v1/health-check")).json() == report
        (found,) = report["tasks"]
        assert found["lastEventType"] == "Task Processing Started"
        assert found["elapsed"] >= found["timeSinceLastEvent"] > 0


@async_test
async def test_one_task_is_checked_by_hand_and_nobody_else_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, "critical") as (door, kinds):
        (task_id,) = kinds
        job_id, _, key = task_id.partition("_")

        found = (await door.get(f"/v1/jobs/{job_id}/tasks/{key}/health")).json()

        assert (found["status"], found["health"]) == ("processing", "critical")
        assert found["workerId"] is not None
        assert (await door.get("/v1/health-check")).status_code == 404


@async_test
async def test_who_may_only_look_cannot_have_people_alarmed(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        for scope, status in (
            (ApiScope.READ, 403),
            (ApiScope.SUBMIT, 403),
            (ApiScope.OPERATE, 200),
        ):
            headers = {"x-api-key": await door.key(scope)}
            answer = await door.post("/v1/health-check", headers=headers)
            assert answer.status_code == status


def _signed(received: Received) -> bool:
    at, _, rest = received.headers["longshore-signature"].partition(",")
    signed = f"{at.removeprefix('t=')}.".encode() + received.body
    mark = hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    return f"v1={mark}" in rest.split(",")


@async_test
async def test_people_are_told_of_each_problem_once_and_of_its_end(tmp_path: Path) -> None:
    with Server().running() as server:
        alerts = {"webhook_url": server.url, "webhook_secrets": [SECRET]}
        async with running(tmp_path, *KINDS, alerts=alerts) as (door, kinds):
            for _ in range(3):
                assert (await door.post("/v1/health-check")).status_code == 200
            first = list(server.received)
            (gone,) = (task_id for task_id, kind in kinds.items() if kind == "overtime")
            job_id, _, key = gone.partition("_")
            await door.post(f"/v1/jobs/{job_id}/tasks/{key}/cancel")
            await door.until_task(job_id, key, "cancelled")
            await door.post("/v1/health-check")

            assert [_signed(one) for one in first] == [True]
            assert gone in first[0].body.decode()
            assert [_signed(one) for one in server.received[1:]] == [True]
            assert gone in server.received[1].body.decode()


@pytest.mark.parametrize("answer", [Answer(status=500), Answer(status=404), Answer(hangs_up=True)])
@async_test
async def test_an_alert_that_cannot_be_brought_fails_no_check_and_is_brought_later(
    answer: Answer, tmp_path: Path
) -> None:
    with Server().running() as server:
        server.answers_with(answer)
        alerts = {"webhook_url": server.url, "webhook_secrets": [SECRET], "timeout": "2s"}
        async with running(tmp_path, "overtime", alerts=alerts) as (door, kinds):
            failing = await door.post("/v1/health-check")
            before = len(server.received)
            server.answers_with(Answer())
            for _ in range(2):
                assert (await door.post("/v1/health-check")).status_code == 200

            assert failing.status_code == 200
            assert {task["requestId"] for task in failing.json()["tasks"]} == set(kinds)
            assert before >= 1
            assert len(server.received) == before + 1
