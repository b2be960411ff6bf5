"""Jobs over HTTP: J1 to J3, J7."""

import asyncio
from pathlib import Path

from longshore.core.api_keys import ApiScope
from longshore.core.definitions.definition import NO_DEFINITION
from tests.interfaces.rest.server import a_task, async_test, run_server


@async_test
async def test_a_job_is_accepted_and_the_answer_has_its_location(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.post(
            "/v1/jobs", {"name": "n", "tasks": [a_task("a"), a_task("b", "a")]}
        )

        accepted = answer.json()
        assert answer.status_code == 201
        assert answer.headers["location"] == f"/v1/jobs/{accepted['jobId']}"
        assert set(accepted) == {
            "jobId",
            "status",
            "totalTasks",
            "rootTasks",
            "createdAt",
            "requestId",
            "created",
        }
        assert (accepted["status"], accepted["totalTasks"]) == ("running", 2)
        assert accepted["rootTasks"] == ["a"]
        job = (await server.get(answer.headers["location"])).json()
        assert (job["name"], job["progress"]["open"]) == ("n", 2)
        assert [task["status"] for task in job["tasks"]] == ["pending", "waiting"]


@async_test
async def test_the_same_idempotency_key_gives_the_same_job_also_to_many_at_once(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        job, header = {"tasks": [a_task("a")]}, {"Idempotency-Key": "order 17"}

        answers = await asyncio.gather(
            *(server.post("/v1/jobs", job, headers=header) for _ in range(10))
        )
        other = await server.post("/v1/jobs", {"tasks": [a_task("b")]}, headers=header)

        assert len({answer.json()["jobId"] for answer in answers}) == 1
        assert sorted(answer.status_code for answer in answers) == [200] * 9 + [201]
        assert (other.status_code, other.json()["type"]) == (
            422,
            "urn:longshore:problem:request-id-used",
        )
        assert len((await server.get("/v1/jobs")).json()["jobs"]) == 1


@async_test
async def test_each_job_of_a_batch_has_an_answer(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        batch = {
            "jobs": [
                {"requestId": "one", "job": {"tasks": [a_task("a")]}},
                {"requestId": "two", "job": {"tasks": [a_task("a", "missing")]}},
                {"requestId": "one", "job": {"tasks": [a_task("b")]}},
                {"requestId": "one", "job": {"tasks": [a_task("a")]}},
                {"job": {"tasks": [a_task("c")]}},
            ]
        }

        first = await server.post("/v1/jobs/batch", batch)
        again = await server.post("/v1/jobs/batch", {"jobs": batch["jobs"][:4]})

        answers = first.json()["answers"]
        jobs = [answer["job"] for answer in answers]
        problems = [answer["problem"] for answer in answers]
        assert first.status_code == again.status_code == 200
        assert [job and job["created"] for job in jobs] == [True, None, None, False, True]
        assert jobs[0]["jobId"] == jobs[3]["jobId"]
        assert problems[1]["errors"][0]["path"] == "tasks[0].dependsOn[0]"
        assert problems[2]["type"] == "urn:longshore:problem:request-id-used"
        assert problems[2]["requestId"] == first.headers["x-request-id"]
        repeated = [answer["job"] for answer in again.json()["answers"]]
        assert [job and job["created"] for job in repeated] == [False, None, None, False]
        assert len((await server.get("/v1/jobs")).json()["jobs"]) == 2


@async_test
async def test_a_job_with_definitions_needs_a_key_that_may_change_them(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job = {
            "tasks": [{"taskId": "a", "name": "own"}],
            "definitions": [{"name": "own", "runner": "command", "options": {"argv": ["true"]}}],
        }
        batch = {"jobs": [{"job": {"tasks": [a_task("a")]}}, {"job": job}]}
        submitter = {"x-api-key": await server.key(ApiScope.SUBMIT)}
        operator = {"x-api-key": await server.key(ApiScope.SUBMIT, ApiScope.OPERATE)}

        refused = await server.post("/v1/jobs/batch", batch, headers=submitter)
        before = await server.get("/v1/task-definitions")
        jobs = (await server.get("/v1/jobs")).json()["jobs"]
        accepted = await server.post("/v1/jobs/batch", batch, headers=operator)
        after = await server.get("/v1/task-definitions")

        plain, with_definitions = refused.json()["answers"]
        assert [job["jobId"] for job in jobs] == [plain["job"]["jobId"]]
        assert with_definitions["problem"]["status"] == 403
        assert "'operate'" in with_definitions["problem"]["detail"]
        assert before.json()["definitions"] == []
        assert all(answer["job"] for answer in accepted.json()["answers"])
        assert [item["name"] for item in after.json()["definitions"]] == ["own"]


@async_test
async def test_a_batch_that_is_malformed_creates_nothing(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        good = {"requestId": "one", "job": {"tasks": [a_task("a")]}}
        for body in (
            {"jobs": []},
            {"jobs": [good, {"requestId": "two"}]},
            {"jobs": [{**good, "definitions": []}]},
            {"jobs": [good] * 1_001},
            [good],
        ):
            answer = await server.post("/v1/jobs/batch", body)
            assert (answer.status_code, answer.json()["title"]) == (422, "Unprocessable Entity")

        assert (await server.get("/v1/jobs")).json()["jobs"] == []


@async_test
async def test_an_invalid_job_is_refused_with_the_path_of_every_error(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.post(
            "/v1/jobs",
            {
                "tasks": [
                    {"taskId": "a", "name": "missing"},
                    a_task("b", "c"),
                    a_task("c", "b"),
                    a_task("a"),
                ]
            },
        )

        problem = answer.json()
        assert answer.status_code == 422
        assert answer.headers["content-type"] == "application/problem+json"
        assert problem["requestId"] == answer.headers["x-request-id"]
        assert {(error["path"], error["message"]) for error in problem["errors"]} == {
            ("tasks[0].name", NO_DEFINITION.format("missing")),
            ("tasks[3].taskId", "'a' is already the id of tasks[0]"),
            ("tasks[1].dependsOn[0]", "each of these tasks depends on the next: b -> c -> b"),
        }
        assert (await server.get("/v1/jobs")).json()["jobs"] == []


@async_test
async def test_jobs_are_listed_page_by_page_while_more_are_added(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        first = [await server.submit(a_task("a")) for _ in range(5)]
        page = (await server.get("/v1/jobs?limit=2")).json()
        seen = [job["jobId"] for job in page["jobs"]]
        await server.submit(a_task("a"))

        while page["cursor"]:
            path = f"/v1/jobs?limit=2&cursor={page['cursor']}"
            page = (await server.get(path)).json()
            seen += [job["jobId"] for job in page["jobs"]]

        assert seen == first[::-1]
        assert (await server.get("/v1/jobs?status=completed")).json()["jobs"] == []
        wrong = await server.get("/v1/jobs?limit=101&status=x&cursor=abc")
        assert wrong.status_code == 422
        assert [error["path"] for error in wrong.json()["errors"]] == [
            "query.limit",
            "query.status",
        ]
        assert (await server.get("/v1/jobs?cursor=abc")).status_code == 400


@async_test
async def test_a_job_that_has_not_changed_is_not_sent_again(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(a_task("a"))
        first = await server.get(f"/v1/jobs/{job_id}")
        tag = {"If-None-Match": f'"other", {first.headers["etag"]}'}

        same = await server.get(f"/v1/jobs/{job_id}", headers=tag)
        await server.post(f"/v1/jobs/{job_id}/cancel")
        changed = await server.get(f"/v1/jobs/{job_id}", headers=tag)

        assert (same.status_code, same.content) == (304, b"")
        assert (changed.status_code, changed.json()["status"]) == (200, "cancelled")


@async_test
async def test_tasks_are_added_to_a_job_under_way_and_get_the_results_of_old_ones(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(
            a_task("a", argv=("sh", "-c", 'echo \'{"type":"result","value":42}\' >&3')),
            a_task("z", argv=("sleep", "2")),
        )
        while (await server.get(f"/v1/jobs/{job_id}/tasks/a")).json()["status"] != "completed":
            await asyncio.sleep(0.02)  # another process works on it
        show = ("sh", "-c", "cat $LONGSHORE_ATTEMPT_DEPENDENCIES")

        added = await server.post(
            f"/v1/jobs/{job_id}/tasks",
            {"tasks": [a_task("b", "a", argv=show), a_task("c", "b", "z")]},
            headers={"Idempotency-Key": "more"},
        )
        again = await server.post(
            f"/v1/jobs/{job_id}/tasks",
            {"tasks": [a_task("b", "a", argv=show), a_task("c", "b", "z")]},
            headers={"Idempotency-Key": "more"},
        )

        assert (added.status_code, added.json()["addedTasks"]) == (201, ["b", "c"])
        assert (again.status_code, again.json()["totalTasks"]) == (200, 4)
        await server.until(job_id, "completed")
        output = (await server.get(f"/v1/jobs/{job_id}/tasks/b/output")).json()["output"]
        assert "".join(piece["text"] for piece in output) == '{"a": 42}'
        late = await server.post(f"/v1/jobs/{job_id}/tasks", {"tasks": [a_task("d")]})
        assert (late.status_code, late.json()["type"]) == (409, "urn:longshore:problem:refused")


@async_test
async def test_a_failed_job_is_resumed_and_what_completed_is_not_run_again(
    tmp_path: Path,
) -> None:
    marker = tmp_path / "marker"
    async with run_server(tmp_path / "data", with_worker=True) as server:
        job_id = await server.submit(
            a_task("a"),
            a_task("b", "a", argv=("test", "-e", str(marker))),
            a_task("c", "b"),
        )
        failed = await server.until(job_id, "failed")
        assert failed["progress"] == {
            "completed": 1,
            "failed": 1,
            "cancelled": 0,
            "blocked": 1,
            "open": 0,
        }
        marker.touch()

        resumed = (await server.post(f"/v1/jobs/{job_id}/resume", {"tasks": ["a", "b"]})).json()

        assert (resumed["round"], resumed["tasks"]) == (2, ["b"])
        assert list(resumed["refused"]) == ["a"]
        job = await server.until(job_id, "completed")
        assert [task["attempt"] for task in job["tasks"]] == [1, 2, 1]


@async_test
async def test_a_running_job_is_cancelled_and_its_child_is_killed(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=("sleep", "1000")), a_task("b", "a"))
        while (await server.get(f"/v1/jobs/{job_id}/tasks/a")).json()["status"] != "processing":
            await asyncio.sleep(0.02)  # another process works on it

        answer = await server.post(f"/v1/jobs/{job_id}/cancel", {"reason": "wrong day"})

        assert answer.status_code == 200
        job = await server.until(job_id, "cancelled")
        assert [task["status"] for task in job["tasks"]] == ["cancelled", "cancelled"]
        again = await server.post(f"/v1/jobs/{job_id}/cancel")
        assert again.status_code == 409
        wrong = await server.post(f"/v1/jobs/{job_id}/cancel", {"reason": 7, "x": 1})
        assert [error["path"] for error in wrong.json()["errors"]] == ["reason", "x"]
