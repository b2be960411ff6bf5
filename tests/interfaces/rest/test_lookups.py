"""Looking up jobs, tasks and ids over HTTP: J3."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope
from longshore.services.documents import format_timestamp
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server


async def _submitted(server: RestServer, name: str | None, *keys: str) -> dict[str, Any]:
    body = {"tasks": [a_task(key) for key in keys or ("a",)], **({"name": name} if name else {})}
    answer = await server.post("/v1/jobs", body)
    assert answer.status_code == 201
    accepted: dict[str, Any] = answer.json()
    return accepted


async def _ids(server: RestServer, **filters: Any) -> list[str]:
    answer = await server.get("/v1/jobs", params=filters)
    assert answer.status_code == 200, answer.text
    return [job["jobId"] for job in answer.json()["jobs"]]


@async_test
async def test_jobs_are_found_by_state_name_and_time_together(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        jobs = []
        for name in ("nightly", "weekly", "nightly", None):
            jobs.append(await _submitted(server, name))
            # Times on the wire have milliseconds: no two may be equal.
            while format_timestamp(server.services.backend.clock.now()) <= jobs[-1]["createdAt"]:
                await asyncio.sleep(0)
        first, second, third, fourth = (job["jobId"] for job in jobs)
        times = [job["createdAt"] for job in jobs]
        await server.post(f"/v1/jobs/{first}/cancel")

        assert await _ids(server, name="nightly") == [third, first]
        assert await _ids(server, name="night") == []
        assert await _ids(server, status="cancelled") == [first]
        assert await _ids(server, name="nightly", status="running") == [third]
        assert await _ids(server, createdFrom=times[1]) == [fourth, third, second]
        assert await _ids(server, createdBefore=times[2]) == [second, first]
        # Two spans that meet share no job.
        assert await _ids(server, createdFrom=times[1], createdBefore=times[3]) == [third, second]
        assert await _ids(server, name="nightly", createdFrom=times[1]) == [third]
        wrong = await server.get("/v1/jobs?createdFrom=yesterday&createdBefore=2030-01-31T12:00:00")
        assert [error["path"] for error in wrong.json()["errors"]] == [
            "query.createdFrom",
            "query.createdBefore",
        ]


@pytest.mark.parametrize(
    ("path", "parameter", "hint"),
    [
        ("/v1/jobs?limit=5&", "state", "; did you mean 'status'?"),
        ("/v1/jobs?", "foo", ""),
        ("/v1/jobs?", "x" * 60_000, ""),
        ("/v1/dead-letters?", "job_id", "; did you mean 'jobId'?"),
        ("/v1/jobs/{job_id}?", "job_id", ""),
        ("/v1/jobs/{job_id}/events/stream?", "task", "; did you mean 'tasks'?"),
        ("/v1/openapi.json?", "foo", ""),
        ("/live?", "foo", ""),
    ],
)
@async_test
async def test_an_unknown_query_parameter_is_refused(
    path: str, parameter: str, hint: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as server:
        job = await _submitted(server, None)

        answer = await server.get(path.format(job_id=job["jobId"]) + f"{parameter}=failed&x=y")

        (error,) = answer.json()["errors"]
        assert answer.status_code == 422
        assert error["path"] == f"query.{parameter[:50]}"
        assert error["message"] == f"there is no such parameter{hint}"


@async_test
async def test_the_key_is_checked_before_the_query_parameters(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        keys = ("unknown", await server.key(ApiScope.READ))
        unknown, not_allowed = [
            await server.get("/v1/keys?foo=x", headers={"x-api-key": key}) for key in keys
        ]

    assert (unknown.status_code, not_allowed.status_code) == (401, 403)


@pytest.mark.parametrize(
    "filters",
    [{}, {"status": "running"}, {"name": "n"}, {"createdFrom": "2000-01-01T00:00:00Z"}],
)
@async_test
async def test_jobs_added_between_two_pages_cause_no_duplicate_and_no_gap(
    filters: dict[str, str], tmp_path: Path
) -> None:
    async with run_server(tmp_path) as server:
        first = [(await _submitted(server, "n"))["jobId"] for _ in range(7)]
        seen: list[str] = []
        cursor: str | None = None

        while True:
            params = {"limit": 2, **filters, **({"cursor": cursor} if cursor else {})}
            page = (await server.get("/v1/jobs", params=params)).json()
            seen += [job["jobId"] for job in page["jobs"]]
            cursor = page["cursor"]
            for _ in range(2):
                await _submitted(server, "n")
            if cursor is None:
                break

        assert seen == first[::-1]


@async_test
async def test_tasks_of_a_growing_job_are_paged_without_duplicate_or_gap(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(*(a_task(f"t{number}") for number in range(5)))
        path = f"/v1/jobs/{job_id}/tasks"
        page = (await server.get(f"{path}?limit=2")).json()
        seen = [task["taskId"] for task in page["tasks"]]
        await server.post(path, {"tasks": [a_task("late")]})

        while page["cursor"]:
            page = (await server.get(path, params={"limit": 2, "cursor": page["cursor"]})).json()
            seen += [task["taskId"] for task in page["tasks"]]

        assert seen == ["t0", "t1", "t2", "t3", "t4", "late"]


@async_test
async def test_tasks_of_all_jobs_are_listed_by_state_the_newest_first(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        first = await server.submit(a_task("a"), a_task("b", "a"))
        second = await server.submit(a_task("c"))
        await server.post(f"/v1/jobs/{second}/cancel")

        async def listed(**filters: Any) -> list[str]:
            page = (await server.get("/v1/tasks", params=filters)).json()
            return [task["requestId"] for task in page["tasks"]]

        assert await listed(status="pending") == [f"{first}_a"]
        assert await listed(status="waiting") == [f"{first}_b"]
        assert await listed(status="cancelled") == [f"{second}_c"]
        assert set(await listed()) == {f"{first}_a", f"{first}_b", f"{second}_c"}
        page = (await server.get("/v1/tasks?limit=2")).json()
        rest = (await server.get("/v1/tasks", params={"cursor": page["cursor"]})).json()
        assert [task["requestId"] for task in (*page["tasks"], *rest["tasks"])] == await listed()
        assert (await server.get("/v1/tasks?status=lost")).status_code == 422


@async_test
async def test_an_id_is_found_by_its_prefix(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        first = await server.submit(a_task("fetch"), a_task("find"))
        second = await server.submit(a_task("fetch"))

        async def ids(prefix: str, **options: Any) -> list[str]:
            params = {"prefix": prefix, **options}
            matches: list[str] = (await server.get("/v1/ids", params=params)).json()["ids"]
            return matches

        both = sorted([first, f"{first}_fetch", f"{first}_find", second, f"{second}_fetch"])
        assert await ids("job-") == both
        assert await ids("job-", limit=2) == both[:2]
        # Ids begin with their time, so those of one moment share more than a few characters.
        shared = next(n for n in range(len(first)) if first[n] != second[n])
        assert await ids(first[:shared]) == both
        assert await ids(first[: shared + 1]) == [first, f"{first}_fetch", f"{first}_find"]
        assert await ids(f"{first}_fi") == [f"{first}_find"]
        assert await ids("%") == []
        assert (await server.get("/v1/ids")).status_code == 422
        assert (await server.get("/v1/ids?prefix=")).status_code == 422


@async_test
async def test_a_job_is_shown_with_counts_of_its_states_also_when_not_all_tasks_fit(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(
            a_task("a"), *(a_task(f"b{number}", "a") for number in range(4))
        )

        whole = (await server.get(f"/v1/jobs/{job_id}")).json()
        part = (await server.get(f"/v1/jobs/{job_id}?limit=2")).json()
        statuses = (await server.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"]

        assert whole["states"] == part["states"]
        assert {state: n for state, n in part["states"].items() if n} == {
            "pending": 1,
            "waiting": 4,
        }
        assert (whole["cursor"], len(part["tasks"])) == (None, 2)
        rest = (
            await server.get(f"/v1/jobs/{job_id}/tasks", params={"cursor": part["cursor"]})
        ).json()
        assert part["tasks"] + rest["tasks"] == whole["tasks"]
        assert statuses == {"a": "pending", **{f"b{number}": "waiting" for number in range(4)}}


@async_test
async def test_the_exit_code_of_a_job_is_that_of_its_only_task_or_zero_or_one(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        jobs = {
            0: await server.submit(a_task("a"), a_task("b")),
            1: await server.submit(a_task("a"), a_task("b", argv=("sh", "-c", "exit 7"))),
            7: await server.submit(a_task("a", argv=("sh", "-c", "exit 7"))),
            None: await server.submit(a_task("a", argv=("sleep", "1000"))),
        }
        for code, job_id in jobs.items():
            if code is not None:
                await server.until(job_id, "completed", "failed")

        listed = (await server.get("/v1/jobs")).json()["jobs"]

        assert {job["exitCode"]: job["jobId"] for job in listed} == jobs
        for code, job_id in jobs.items():
            assert (await server.get(f"/v1/jobs/{job_id}")).json()["exitCode"] == code
        await server.post(f"/v1/jobs/{jobs[None]}/cancel")


@pytest.mark.parametrize(
    ("path", "cursor"),
    [
        # Numbers beyond 64 bits, and half a character, under the names of the listings.
        ("/v1/jobs", "WyJqb2JzIiwxMDAwMDAwMDAwMDAwMDAwMDAwMDAwLCJ4Il0"),
        ("/v1/jobs", "WyJqb2JzIiw1LCJcdWQ4MDAiXQ"),
        ("/v1/tasks", "WyJ0YXNrcyIsNSwiXHVkODAwIl0"),
        ("/v1/events", "WyJldmVudHMiLDEwMDAwMDAwMDAwMDAwMDAwMDAwMDAwXQ"),
        ("/v1/dead-letters", "W1tbW1tbW1tbW1tbW1s"),
    ],
)
@async_test
async def test_an_invalid_cursor_is_refused(path: str, cursor: str, tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.get(path, params={"cursor": cursor})

        assert (answer.status_code, answer.json()["type"]) == (
            400,
            "urn:longshore:problem:bad-request",
        )
