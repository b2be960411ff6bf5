"""Queues through the HTTP door: paused by whoever runs the house, for everybody to see."""

from datetime import timedelta
from pathlib import Path

import pytest

from longshore.core.api_keys import ApiScope
from tests.interfaces.rest.server import FAST_WORKER, a_task, async_test, run_server


@async_test
async def test_nothing_of_a_paused_queue_begins_until_it_goes_on(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        paused = (await door.post("/v1/queues/default/pause", {"reason": "repairs"})).json()
    serves_both = FAST_WORKER.model_copy(update={"queues": ("default", "other")})
    async with run_server(tmp_path, with_worker=True, others={"worker": serves_both}) as door:
        held = await door.submit(a_task("a"))
        free = await door.submit(a_task("a", queue="other"))
        await door.until(free, "completed")
        reasons = (await door.get(f"/v1/jobs/{held}/tasks/a/why")).json()["reasons"]
        listed = (await door.get("/v1/queues")).json()

        resumed = await door.post("/v1/queues/default/resume")

        assert (paused["name"], paused["by"], paused["reason"]) == ("default", "ann", "repairs")
        assert listed == {"paused": [paused]}
        assert "queue_paused" in [reason["code"] for reason in reasons]
        assert resumed.json() == paused
        await door.until(held, "completed")
        assert (await door.get("/v1/queues")).json() == {"paused": []}


@async_test
async def test_of_several_pauses_the_first_counts_and_a_queue_is_resumed_once(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as door:
        bob = {"x-api-key": await door.key(ApiScope.ADMIN, name="bob")}

        first = await door.post("/v1/queues/mail/pause")
        second = await door.post("/v1/queues/mail/pause", {"reason": "mine"}, headers=bob)
        resumed = await door.post("/v1/queues/mail/resume", headers=bob)
        again = await door.post("/v1/queues/mail/resume")

        assert (first.json()["reason"], second.json()) == (None, first.json())
        assert resumed.json() == first.json()
        assert (again.status_code, again.json()["type"]) == (409, "urn:longshore:problem:refused")


@async_test
async def test_a_held_queue_is_shown_with_its_end_and_can_be_resumed(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        now = door.services.backend.clock.now()
        await door.services.backend.queue_controls.hold(
            "default", until=now + timedelta(minutes=5), by="worker-1", reason="limit", now=now
        )
        job_id = await door.submit(a_task("a"))

        (held,) = (await door.get("/v1/queues")).json()["paused"]
        reasons = (await door.get(f"/v1/jobs/{job_id}/tasks/a/why")).json()["reasons"]
        resumed = await door.post("/v1/queues/default/resume")

        assert (held["name"], held["by"], held["reason"]) == ("default", "worker-1", "limit")
        assert held["until"] > held["at"]
        (why,) = [reason for reason in reasons if reason["code"] == "queue_held"]
        assert (why["until"], why["remedy"]) == (held["until"], "longshore queues resume default")
        assert resumed.json() == held
        assert (await door.get("/v1/queues")).json() == {"paused": []}


@async_test
async def test_only_administrators_of_the_house_may_pause_and_all_may_look(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as door:
        await door.post("/v1/queues/held/pause")
        ordinary = (ApiScope.READ, ApiScope.SUBMIT, ApiScope.OPERATE)
        keys = [
            await door.key(*ordinary),
            await door.key(*ordinary, tenant="globex"),
            await door.key(ApiScope.ADMIN, tenant="globex"),
        ]

        for key in keys:
            headers = {"x-api-key": key}
            for path in ("/v1/queues/default/pause", "/v1/queues/held/resume"):
                answer = await door.post(path, headers=headers)
                assert (answer.status_code, answer.json()["type"]) == (
                    403,
                    "urn:longshore:problem:not-allowed",
                )
            listed = (await door.get("/v1/queues", headers=headers)).json()["paused"]
            assert [queue["name"] for queue in listed] == ["held"]


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        ("/v1/queues/a.b/pause", {}, "path.name"),
        ("/v1/queues/a/pause", {"reason": "x" * 1_001}, "reason"),
        ("/v1/queues/a/pause", {"why": "x"}, "why"),
        ("/v1/queues/a.b/resume", None, "path.name"),
    ],
)
@async_test
async def test_what_is_wrong_with_a_pause_is_told_with_its_place(
    path: str, body: object, place: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as door:
        answer = await door.post(path, body)

        assert answer.status_code == 422
        assert [one["path"] for one in answer.json()["errors"]] == [place]
        assert (await door.get("/v1/queues")).json() == {"paused": []}
