"""Finding things through the HTTP door: J3."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

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
    async with run_server(tmp_path) as door:
        made = []
        for name in ("nightly", "weekly", "nightly", None):
            made.append(await _submitted(door, name))
            # Times on the wire have milliseconds: no two may be alike.
            while format_timestamp(door.services.backend.clock.now()) <= made[-1]["createdAt"]:
                await asyncio.sleep(0)
        one, two, three, four = (job["jobId"] for job in made)
        times = [job["createdAt"] for job in made]
        await door.post(f"/v1/jobs/{one}/cancel")

        assert await _ids(door, name="nightly") == [three, one]
        assert await _ids(door, name="night") == []
        assert await _ids(door, status="cancelled") == [one]
        assert await _ids(door, name="nightly", status="running") == [three]
        assert await _ids(door, createdFrom=times[1]) == [four, three, two]
        assert await _ids(door, createdBefore=times[2]) == [two, one]
        # Two spans that meet share no job.
        assert await _ids(door, createdFrom=times[1], createdBefore=times[3]) == [three, two]
        assert await _ids(door, name="nightly", createdFrom=times[1]) == [three]
        wrong = await door.get("/v1/jobs?createdFrom=yesterday&createdBefore=2030-01-31T12:00:00")
        assert [one["path"] for one in wrong.json()["errors"]] == [
            "query.createdFrom",
            "query.createdBefore",
        ]


@pytest.mark.parametrize(
    "wanted",
    [{}, {"status": "running"}, {"name": "n"}, {"createdFrom": "2000-01-01T00:00:00Z"}],
)
@async_test
async def test_jobs_added_between_two_pages_are_no_double_and_leave_no_gap(
    wanted: dict[str, str], tmp_path: Path
) -> None:
    async with run_server(tmp_path) as door:
        first = [(await _submitted(door, "n"))["jobId"] for _ in range(7)]
        seen: list[str] = []
        cursor: str | None = None

        while True:
            params = {"limit": 2, **wanted, **({"cursor": cursor} if cursor else {})}
            page = (await door.get("/v1/jobs", params=params)).json()
            seen += [job["jobId"] for job in page["jobs"]]
            cursor = page["cursor"]
            for _ in range(2):
                await _submitted(door, "n")
            if cursor is None:
                break

        assert seen == first[::-1]


@async_test
async def test_tasks_of_a_growing_job_are_paged_without_double_or_gap(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        job_id = await door.submit(*(a_task(f"t{number}") for number in range(5)))
        path = f"/v1/jobs/{job_id}/tasks"
        page = (await door.get(f"{path}?limit=2")).json()
        seen = [task["taskId"] for task in page["tasks"]]
        await door.post(path, {"tasks": [a_task("late")]})

        while page["cursor"]:
            page = (await door.get(path, params={"limit": 2, "cursor": page["cursor"]})).json()
            seen += [task["taskId"] for task in page["tasks"]]

        assert seen == ["t0", "t1", "t2", "t3", "t4", "late"]


@async_test
async def test_tasks_of_all_jobs_are_listed_by_state_the_newest_first(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        one = await door.submit(a_task("a"), a_task("b", "a"))
        two = await door.submit(a_task("c"))
        await door.post(f"/v1/jobs/{two}/cancel")

        async def listed(**wanted: Any) -> list[str]:
            page = (await door.get("/v1/tasks", params=wanted)).json()
            return [task["requestId"] for task in page["tasks"]]

        assert await listed(status="pending") == [f"{one}_a"]
        assert await listed(status="waiting") == [f"{one}_b"]
        assert await listed(status="cancelled") == [f"{two}_c"]
        assert set(await listed()) == {f"{one}_a", f"{one}_b", f"{two}_c"}
        page = (await door.get("/v1/tasks?limit=2")).json()
        rest = (await door.get("/v1/tasks", params={"cursor": page["cursor"]})).json()
        assert [task["requestId"] for task in (*page["tasks"], *rest["tasks"])] == await listed()
        assert (await door.get("/v1/tasks?status=lost")).status_code == 422


@async_test
async def test_an_id_is_found_by_its_beginning(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        one = await door.submit(a_task("fetch"), a_task("find"))
        two = await door.submit(a_task("fetch"))

        async def ids(prefix: str, **wanted: Any) -> list[str]:
            params = {"prefix": prefix, **wanted}
            found: list[str] = (await door.get("/v1/ids", params=params)).json()["ids"]
            return found

        both = sorted([one, f"{one}_fetch", f"{one}_find", two, f"{two}_fetch"])
        assert await ids("job-") == both
        assert await ids("job-", limit=2) == both[:2]
        assert await ids(one[:12]) == [one, f"{one}_fetch", f"{one}_find"]
        assert await ids(f"{one}_fi") == [f"{one}_find"]
        assert await ids("%") == []
        assert (await door.get("/v1/ids")).status_code == 422
        assert (await door.get("/v1/ids?prefix=")).status_code == 422


@async_test
async def test_a_job_is_shown_with_counts_of_its_states_also_when_not_all_tasks_fit(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as door:
        job_id = await door.submit(a_task("a"), *(a_task(f"b{number}", "a") for number in range(4)))

        whole = (await door.get(f"/v1/jobs/{job_id}")).json()
        part = (await door.get(f"/v1/jobs/{job_id}?limit=2")).json()
        statuses = (await door.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"]

        assert whole["states"] == part["states"]
        assert {state: n for state, n in part["states"].items() if n} == {
            "pending": 1,
            "waiting": 4,
        }
        assert (whole["cursor"], len(part["tasks"])) == (None, 2)
        rest = (
            await door.get(f"/v1/jobs/{job_id}/tasks", params={"cursor": part["cursor"]})
        ).json()
        assert part["tasks"] + rest["tasks"] == whole["tasks"]
        assert statuses == {"a": "pending", **{f"b{number}": "waiting" for number in range(4)}}


@async_test
async def test_a_job_s_exit_code_is_that_of_its_one_task_or_says_whether_all_went_well(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        jobs = {
            0: await door.submit(a_task("a"), a_task("b")),
            1: await door.submit(a_task("a"), a_task("b", argv=("sh", "-c", "exit 7"))),
            7: await door.submit(a_task("a", argv=("sh", "-c", "exit 7"))),
            None: await door.submit(a_task("a", argv=("sleep", "1000"))),
        }
        for code, job_id in jobs.items():
            if code is not None:
                await door.until(job_id, "completed", "failed")

        listed = (await door.get("/v1/jobs")).json()["jobs"]

        assert {job["exitCode"]: job["jobId"] for job in listed} == jobs
        for code, job_id in jobs.items():
            assert (await door.get(f"/v1/jobs/{job_id}")).json()["exitCode"] == code
        await door.post(f"/v1/jobs/{jobs[None]}/cancel")


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
async def test_a_cursor_that_somebody_made_up_is_refused(
    path: str, cursor: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as door:
        answer = await door.get(path, params={"cursor": cursor})

        assert (answer.status_code, answer.json()["type"]) == (
            400,
            "urn:longshore:problem:bad-request",
        )
