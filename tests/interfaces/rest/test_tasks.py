"""One task over HTTP: its result, output, events, artifacts and resumed streams."""

import asyncio
from pathlib import Path
from typing import Any

from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server
from tests.interfaces.rest.streams import read_stream

COUNTS = ("sh", "-c", "for i in $(seq 1 200); do echo line $i; done")


async def all_text(server: RestServer, path: str, **params: Any) -> tuple[str, list[str], Any]:
    text, ids, end = "", [], None
    async for name, id_, data in read_stream(server, path, **params):
        if name == "end":
            end = data
        else:
            text += data["text"]
            ids.append(id_)
    return text, ids, end


@async_test
async def test_a_reader_gets_every_line_once_and_in_order_also_after_a_reconnect(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=COUNTS))
        path = f"/v1/jobs/{job_id}/tasks/a/output/stream"

        live, ids, end = await all_text(server, path)
        later, _, _ = await all_text(server, path)
        half = ids[len(ids) // 2]
        rest, rest_ids, _ = await all_text(server, path, headers={"Last-Event-ID": half})

        assert live == later == "".join(f"line {number}\n" for number in range(1, 201))
        assert live.endswith(rest)
        assert rest_ids == ids[len(ids) // 2 + 1 :]
        assert end == {"status": "completed"}


@async_test
async def test_many_readers_of_one_task_each_get_all_of_it(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=COUNTS))
        path = f"/v1/jobs/{job_id}/tasks/a/output/stream"

        texts = await asyncio.gather(*(all_text(server, path) for _ in range(20)))

        assert {text for text, _, _ in texts} == {
            "".join(f"line {number}\n" for number in range(1, 201))
        }


@async_test
async def test_the_event_stream_of_a_task_resumes_after_an_event_id(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/tasks/a/events"

        events = [
            (id_, data) async for name, id_, data in read_stream(server, f"{path}/stream") if id_
        ]
        rest = [
            data["eventType"]
            async for name, _, data in read_stream(
                server, f"{path}/stream", headers={"Last-Event-ID": "2"}
            )
            if name == "event"
        ]
        page = (await server.get(f"{path}?after=1&limit=1")).json()["events"]

        types = [data["eventType"] for _, data in events]
        assert [id_ for id_, _ in events] == [str(number) for number in range(1, len(events) + 1)]
        assert (types[0], types[-1]) == ("Task Pending", "Task Completed")
        assert rest == types[2:]
        assert [event["sequence"] for event in page] == [2]


@async_test
async def test_a_result_can_be_read_when_the_task_has_completed(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        say = 'echo \'{"type":"result","value":{"n":42}}\' >&3'
        job_id = await server.submit(
            a_task("a", argv=("sh", "-c", say)), a_task("b", argv=("sleep", "1000"))
        )
        path = f"/v1/jobs/{job_id}/tasks"
        early = await server.get(f"{path}/b/result")
        while (await server.get(f"{path}/a")).json()["status"] != "completed":
            await asyncio.sleep(0.02)  # another process works on it

        assert (await server.get(f"{path}/a/result")).json() == {"result": {"n": 42}}
        assert (early.status_code, early.json()["type"]) == (
            409,
            "urn:longshore:problem:no-result",
        )


@async_test
async def test_artifacts_are_listed_and_read_and_nothing_beside_them(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        make = "mkdir artifacts && printf 'a,b' > artifacts/r.csv"
        job_id = await server.submit(a_task("a", argv=("sh", "-c", make)))
        await server.until(job_id, "completed")
        path = f"/v1/jobs/{job_id}/tasks/a/artifacts"

        listed = (await server.get(path)).json()["artifacts"]
        file = await server.get(f"{path}/attempt-1/artifacts/r.csv")
        outside = [
            await server.get(f"{path}/{name}")
            for name in ("../../../x", "%2e%2e/x", "attempt-1/none", "a//b", "%00")
        ]

        assert {"name": "attempt-1/artifacts/r.csv", "bytes": 3} in listed
        assert (file.content, file.headers["content-disposition"]) == (b"a,b", "attachment")
        assert {answer.status_code for answer in outside} <= {400, 404}


@async_test
async def test_output_bytes_that_are_not_text_are_returned_in_full(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=("printf", "\\377\\376ok")))
        await server.until(job_id, "completed")

        (piece,) = (await server.get(f"/v1/jobs/{job_id}/tasks/a/output")).json()["output"]

        assert piece["base64"] == "//5vaw=="
        assert piece["text"].endswith("ok")


@async_test
async def test_a_result_in_review_is_revised_once_and_then_approved(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        definition = {
            "runner": "command",
            "requiresReview": True,
            "options": {"argv": ["echo", "draft"]},
        }
        await server.send("PUT", "/v1/task-definitions/draft", definition)
        job_id = await server.submit(
            {"taskId": "a", "name": "draft"}, a_task("b", "a", argv=("echo", "sent"))
        )
        task = f"/v1/jobs/{job_id}/tasks/a"

        async def in_review(attempt: int) -> None:
            while (row := (await server.get(task)).json())["status"] != "in_review":
                await asyncio.sleep(0.02)  # another process works on it
            assert row["attempt"] == attempt

        await in_review(1)
        reasons = (await server.get(f"{task}/why")).json()["reasons"]
        empty = await server.post(f"{task}/revise", {"feedback": "  "})
        revised = await server.post(f"{task}/revise", {"feedback": "shorter", "attempt": 1})
        await in_review(2)
        stale = await server.post(f"{task}/approve", {"attempt": 1})
        approved = await server.post(f"{task}/approve", {"attempt": 2})

        assert reasons[0]["remedy"] == f"longshore approve {job_id}_a"
        assert (empty.status_code, empty.json()["errors"][0]["path"]) == (422, "feedback")
        assert revised.json()["status"] == "pending"
        assert stale.status_code == 409
        assert approved.json()["status"] == "completed"
        await server.until(job_id, "completed")


@async_test
async def test_a_cancelled_task_is_the_reason_why_its_dependents_wait(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=("sleep", "1000")), a_task("b", "a"))
        path = f"/v1/jobs/{job_id}/tasks"
        while (await server.get(f"{path}/a")).json()["status"] != "processing":
            await asyncio.sleep(0.02)  # another process works on it
        health = (await server.get(f"{path}/a/health")).json()

        answer = await server.post(f"{path}/a/cancel", {"reason": "wrong day"})
        while (await server.get(f"{path}/a")).json()["status"] != "cancelled":
            await asyncio.sleep(0.02)  # another process works on it

        assert answer.status_code == 200
        assert (health["status"], health["health"]) == ("processing", "healthy")
        assert (await server.get(f"{path}/b/health")).json()["health"] is None
        reasons = (await server.get(f"{path}/b/why")).json()["reasons"]
        assert reasons[-1]["requestId"] == f"{job_id}_a"
        assert reasons[-1]["remedy"] == f"longshore resume {job_id}"
        again = await server.post(f"{path}/a/cancel")
        assert again.status_code in (200, 409)
        of_job = (await server.get(f"/v1/jobs/{job_id}/why")).json()["reasons"]
        assert of_job
