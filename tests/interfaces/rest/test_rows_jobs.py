"""Special cases of the requirements J1, J2, J3, J7 and J8 over HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longshore.errors import OutcomeUnknown
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server

DRAFTS = """
import longshore

def write():
    seen = longshore.current()
    if seen.feedback is None:
        return {"text": "draft", "was": None}
    return {"text": seen.feedback, "was": seen.previous_output["text"]}
"""


@async_test
async def test_the_same_request_is_the_same_job_after_a_lost_answer_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, header = {"tasks": [a_task("a"), a_task("b", "a")]}, {"Idempotency-Key": "order 17"}
    async with run_server(tmp_path) as server:
        ledger = server.services.backend.ledger
        create_jobs, lost = ledger.create_jobs, 0

        async def silent(creations: Any) -> Any:
            nonlocal lost
            lost += 1
            await create_jobs(creations)
            message = "no answer came"
            raise OutcomeUnknown(message)

        with monkeypatch.context() as patched:
            patched.setattr(ledger, "create_jobs", silent)
            unheard = await server.post("/v1/jobs", job, headers=header)
        again = await server.post("/v1/jobs", job, headers=header)
    async with run_server(tmp_path) as server:
        later = await server.post("/v1/jobs", job, headers=header)
        jobs = (await server.get("/v1/jobs")).json()["jobs"]

    assert lost > 0
    assert (unheard.status_code, unheard.headers["retry-after"]) == (503, "1")
    assert (again.status_code, later.status_code) == (200, 200)
    assert again.json() == later.json()
    assert [job["jobId"] for job in jobs] == [later.json()["jobId"]]
    assert "_" not in later.json()["jobId"]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"tasks": []}, "tasks"),
        ({}, "tasks"),
        ({"tasks": [a_task("a.b")]}, "tasks[0].taskId"),
        ({"tasks": [a_task("x" * 129)]}, "tasks[0].taskId"),
        ({"tasks": [a_task("a"), a_task("b", "missing")]}, "tasks[1].dependsOn[0]"),
        ({"tasks": [a_task("a"), a_task("b"), a_task("c"), a_task("d")]}, "tasks"),
        ({"tasks": [a_task("a")], "colour": "red"}, "colour"),
    ],
)
@async_test
async def test_an_invalid_job_is_refused_with_the_path_of_the_error_and_not_stored(
    body: dict[str, Any], path: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path, others={"sizes": {"max_tasks_per_job": 3}}) as server:
        answer = await server.post("/v1/jobs", body)

        assert answer.status_code == 422
        assert path in [error["path"] for error in answer.json()["errors"]]
        assert (await server.get("/v1/jobs")).json()["jobs"] == []


@async_test
async def test_queue_and_priority_are_the_definition_s_unless_the_task_says_otherwise(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        definition = {
            "runner": "command",
            "overridable": ["argv"],
            "queue": "mail",
            "priority": "high",
        }
        await server.send("PUT", "/v1/task-definitions/send", definition)

        job_id = await server.submit(
            {"taskId": "usual", "name": "send"},
            {"taskId": "other", "name": "send", "queue": "slow", "priority": "low"},
        )

        tasks = (await server.get(f"/v1/jobs/{job_id}")).json()["tasks"]
        assert [(task["queue"], task["priority"]) for task in tasks] == [
            ("mail", "high"),
            ("slow", "low"),
        ]


@async_test
async def test_no_task_is_added_to_a_missing_or_ended_job(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(a_task("a"))
        body = {"tasks": [a_task("b", "a")]}
        added = await server.post(f"/v1/jobs/{job_id}/tasks", body)
        wrong = await server.post(f"/v1/jobs/{job_id}/tasks", {"tasks": [a_task("a")]})
        await server.post(f"/v1/jobs/{job_id}/cancel")

        late = await server.post(f"/v1/jobs/{job_id}/tasks", {"tasks": [a_task("c")]})
        nowhere = await server.post("/v1/jobs/job-none/tasks", body)

        assert (added.status_code, added.json()["created"]) == (201, True)
        assert wrong.json()["errors"][0]["path"] == "tasks[0].taskId"
        assert [answer.status_code for answer in (late, nowhere)] == [409, 404]
        statuses = (await server.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"]
        assert statuses == {"a": "cancelled", "b": "cancelled"}


@async_test
async def test_a_job_is_read_with_its_progress_and_the_details_of_each_task(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        usage = 'echo \'{"type":"usage","costUsd":0.25,"turns":3}\' >&3'
        job_id = await server.submit(a_task("a", argv=("sh", "-c", usage)), a_task("b", "a"))

        job = await server.until(job_id, "completed")

        first = job["tasks"][0]
        assert (job["progress"]["completed"], job["states"]["completed"]) == (2, 2)
        assert first == (await server.get(f"/v1/jobs/{job_id}/tasks/a")).json()
        # Used up are those that failed.
        assert (first["attempt"], first["attemptsUsed"], first["maxAttempts"]) == (1, 0, 3)
        assert first["lastEvent"]["type"] == "Task Completed"
        assert first["usage"] == {"costUsd": 0.25, "turns": 3, "tokens": 0}
        assert first["createdAt"] <= first["startedAt"] <= first["finishedAt"]
        assert first["durationMs"] >= 0


@pytest.mark.parametrize("limit", ["0", "101", "-1", "x", "1e3"])
@async_test
async def test_a_page_has_one_to_a_hundred_jobs(limit: str, tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.get("/v1/jobs", params={"limit": limit})

        assert [error["path"] for error in answer.json()["errors"]] == ["query.limit"]


@async_test
async def test_resuming_without_task_ids_resumes_all_failed_tasks_with_fresh_attempts(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    async with run_server(tmp_path / "data", with_worker=True) as server:
        once = ("sh", "-c", f"test -e {go}")
        job_id = await server.submit(
            a_task("a", argv=once), a_task("b", argv=once), a_task("c"), a_task("d", "a", "b")
        )
        await server.until(job_id, "failed")
        go.touch()

        resumed = (await server.post(f"/v1/jobs/{job_id}/resume")).json()
        job = await server.until(job_id, "completed")
        nothing = await server.post(f"/v1/jobs/{job_id}/resume")

        assert resumed == {"jobId": job_id, "round": 2, "tasks": ["a", "b"], "refused": {}}
        assert [(task["attempt"], task["attemptsUsed"]) for task in job["tasks"]] == [
            (2, 0),
            (2, 0),
            (1, 0),
            (1, 0),
        ]
        assert (nothing.status_code, nothing.json()["type"]) == (
            409,
            "urn:longshore:problem:refused",
        )
        (event,) = await server.events(job_id, "Job Resumed")
        assert event["properties"]["tasks"] == ["a", "b"]


@async_test
async def test_a_task_that_was_faster_than_its_cancellation_stays_completed(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a"), a_task("b", delay=1_000))
        await server.until_task(job_id, "a", "completed")

        late = await server.post(f"/v1/jobs/{job_id}/tasks/a/cancel")
        waiting = await server.post(f"/v1/jobs/{job_id}/tasks/b/cancel", {"reason": "enough"})

        assert late.status_code == 409
        assert waiting.json()["status"] == "cancelled"
        statuses = (await server.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"]
        assert statuses == {"a": "completed", "b": "cancelled"}


async def _a_draft(server: RestServer, folder: Path) -> str:
    (folder / "drafts.py").write_text(DRAFTS)
    options = {"function": "drafts:write", "path": [str(folder)]}
    definition = {"runner": "python", "requiresReview": True, "options": options}
    await server.send("PUT", "/v1/task-definitions/draft", definition)
    return await server.submit({"taskId": "a", "name": "draft"}, a_task("b", "a"))


@async_test
async def test_a_revision_gets_the_previous_result_and_the_feedback_at_most_five_times(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path / "data", with_worker=True) as server:
        job_id = await _a_draft(server, tmp_path)
        task = f"/v1/jobs/{job_id}/tasks/a"
        results = []
        for number in range(1, 6):
            await server.until_task(job_id, "a", "in_review")
            results.append((await server.get(f"{task}/result")).json()["result"])
            revised = (await server.post(f"{task}/revise", {"feedback": f"no {number}"})).json()
            assert (revised["status"], revised["revision"]) == ("pending", number)
        await server.until_task(job_id, "a", "in_review")
        results.append((await server.get(f"{task}/result")).json()["result"])

        too_often = await server.post(f"{task}/revise", {"feedback": "once more"})
        too_long = await server.post(f"{task}/revise", {"feedback": "x" * 5_001})
        waiting = (await server.get(f"/v1/jobs/{job_id}/tasks/b")).json()["status"]
        await server.post(f"{task}/approve")

        texts = ["draft", *(f"no {number}" for number in range(1, 6))]
        assert [result["text"] for result in results] == texts
        assert [result["was"] for result in results] == [None, *texts[:-1]]
        assert (too_often.status_code, too_long.status_code) == (409, 422)
        assert waiting == "waiting"
        job = await server.until(job_id, "completed")
        assert [task["attempt"] for task in job["tasks"]] == [6, 1]
        approved = await server.events(job_id, "Task Approved", "Task Completed", "Task Pending")
        types = [event["eventType"] for event in approved if event["entityId"] == f"{job_id}_a"]
        assert types[-2:] == ["Task Approved", "Task Completed"]


@async_test
async def test_a_running_job_keeps_the_version_it_was_started_with(tmp_path: Path) -> None:
    async with run_server(tmp_path / "data", with_worker=True) as server:
        go, path = tmp_path / "go", "/v1/task-definitions/report"

        async def define(text: str) -> None:
            await server.send(
                "PUT", path, {"runner": "command", "options": {"argv": ["echo", text]}}
            )

        await define("first")
        waits = ("sh", "-c", f"until test -e {go}; do sleep 0.02; done")
        report = {"taskId": "b", "name": "report", "dependsOn": ["a"]}
        old = await server.submit(a_task("a", argv=waits), report)
        await define("second")
        new = await server.submit({"taskId": "b", "name": "report"})
        await server.send("DELETE", path)
        gone = await server.post("/v1/jobs", {"tasks": [{"taskId": "b", "name": "report"}]})
        go.touch()

        texts = []
        for job_id in (old, new):
            await server.until(job_id, "completed")
            output = (await server.get(f"/v1/jobs/{job_id}/tasks/b/output")).json()["output"]
            texts.append(output[0]["text"])
        versions = (await server.get(f"{path}/versions")).json()["definitions"]
        second = (await server.get(f"{path}/versions?after=1&limit=1")).json()["definitions"]

        assert texts == ["first\n", "second\n"]
        assert gone.json()["errors"][0]["path"] == "tasks[0].name"
        assert [definition["version"] for definition in versions] == [1, 2]
        assert second == versions[1:]
        assert (await server.get(f"{path}/versions?after=2")).json()["definitions"] == []
        assert (await server.get("/v1/task-definitions/none/versions")).status_code == 404


@async_test
async def test_a_job_that_is_cancelled_and_resumed_at_once_ends_failed_or_cancelled(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(
            *(a_task(f"t{number}", argv=("false",)) for number in range(5))
        )
        await server.until(job_id, "failed")

        answers = await asyncio.gather(
            server.post(f"/v1/jobs/{job_id}/resume"),
            server.post(f"/v1/jobs/{job_id}/cancel"),
            server.post(f"/v1/jobs/{job_id}/resume"),
        )

        assert {answer.status_code for answer in answers} <= {200, 409}
        job = await server.until(job_id, "failed", "cancelled")
        assert job["progress"]["open"] == 0
