"""Budgets over HTTP: their limits, what is spent of them, and how they are raised."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope as KeyScope
from longshore.core.budgets import MAX_AMOUNT, Budget, BudgetScope, BudgetUnit
from longshore.core.events.types import Usage
from longshore.core.ids import task_id_of
from longshore.settings.model import AgentSettings
from tests.interfaces.parked_agents import (
    SPENT,
    USED_UP,
    claim,
    park,
    spend,
    writer_definition,
    writer_task,
)
from tests.interfaces.rest.server import TENANT, RestServer, a_task, async_test, run_server

NOTHING = {"usd": None, "tokens": None, "minutes": None}
UNSPENT = {"usd": 0.0, "tokens": 0, "minutes": 0.0}
DAILY_BUDGET = {"agent": AgentSettings(usd_per_day=10.0)}
REFUSED = "urn:longshore:problem:refused"


async def _submit_writers(
    server: RestServer, *keys: str, of_job: Any = None, of_each: Any = None
) -> str:
    """A job of agents, none of which has begun; the budgets of it and of each of its tasks."""
    options = {} if of_each is None else {"budget": of_each}
    await server.send("PUT", "/v1/task-definitions/writer", writer_definition(**options))
    tasks = [writer_task(key) for key in keys or ("a",)]
    answer = await server.post("/v1/jobs", {"tasks": tasks, "budget": of_job})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["jobId"])


async def _limit(server: RestServer, path: str) -> Any:
    return (await server.get(path)).json()["limit"]


@async_test
async def test_a_parked_task_continues_when_its_budget_is_raised(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, of_each={"usd": 0.15, "tokens": 9_000})
        await park(server.services, task_id_of(job_id, "a"))
        path = f"/v1/jobs/{job_id}/tasks/a"

        before = (await server.get(f"{path}/budget")).json()
        resting = (await server.get(path)).json()
        added = await server.post(f"{path}/budget", {"usd": 1, "tokens": 500})
        after = (await server.get(path)).json()

        assert before == {
            "limit": {"usd": 0.15, "tokens": 9_000, "minutes": None},
            "added": NOTHING,
            "spent": {"usd": 0.2, "tokens": 1_100, "minutes": 1.5},
            "reserved": UNSPENT,
        }
        assert (resting["status"], resting["parked"]["budget"]) == ("parked", "task")
        assert resting["parked"]["reason"] == USED_UP
        assert resting["usage"] == {"costUsd": 0.2, "turns": 2, "tokens": 1_100}
        assert added.status_code == 200
        assert added.json()["limit"] == {"usd": 1.15, "tokens": 9_500, "minutes": None}
        assert added.json()["added"] == {"usd": 1.0, "tokens": 500, "minutes": None}
        assert (await server.get(f"{path}/budget")).json() == added.json()
        assert (after["status"], after["parked"]) == ("pending", None)
        (event,) = await server.events(job_id, "Task Budget Added")
        assert event["properties"]["by"] == "ann"


@async_test
async def test_the_usage_of_an_attempt_is_visible_while_it_runs(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, of_job=20)
        row = await claim(server.services, task_id_of(job_id, "a"))
        on_its_way = Usage(output_tokens=50, cost_usd=0.05)
        await spend(server.services, row, reserved=on_its_way)

        standing = (await server.get(f"/v1/jobs/{job_id}/budget")).json()

        assert standing["limit"] == {"usd": 20.0, "tokens": None, "minutes": None}
        assert standing["spent"] == {"usd": 0.2, "tokens": 1_100, "minutes": 1.5}
        assert standing["reserved"] == {"usd": 0.05, "tokens": 50, "minutes": 0.0}


@async_test
async def test_adding_to_a_job_budget_resumes_the_tasks_parked_by_that_budget(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, "a", "b", "c", of_job={"usd": 0.5, "minutes": 30})
        for key, scope in (("a", BudgetScope.JOB), ("b", BudgetScope.JOB), ("c", BudgetScope.TASK)):
            await park(server.services, task_id_of(job_id, key), scope=scope)

        added = await server.post(f"/v1/jobs/{job_id}/budget", {"usd": 5})

        statuses = (await server.get(f"/v1/jobs/{job_id}")).json()["states"]
        parked = (await server.get("/v1/tasks", params={"status": "parked"})).json()["tasks"]
        assert added.json()["limit"] == {"usd": 5.5, "tokens": None, "minutes": 30.0}
        assert (statuses["pending"], statuses["parked"]) == (2, 1)
        assert [task["taskId"] for task in parked] == ["c"]
        assert len(await server.events(job_id, "Task Unparked")) == 2


@async_test
async def test_the_daily_budget_can_be_read_and_raised(tmp_path: Path) -> None:
    async with run_server(tmp_path, others=DAILY_BUDGET) as server:
        job_id = await _submit_writers(server)
        tomorrow = server.services.backend.clock.now() + timedelta(days=1)
        await park(server.services, task_id_of(job_id, "a"), scope=BudgetScope.DAY, until=tomorrow)

        before = (await server.get("/v1/budget")).json()
        added = (await server.post("/v1/budget", {"usd": 2.5})).json()

        assert before == {
            "limit": {"usd": 10.0, "tokens": None, "minutes": None},
            "added": NOTHING,
            "spent": UNSPENT,
            "reserved": UNSPENT,
        }
        assert (added["limit"]["usd"], added["added"]["usd"]) == (12.5, 2.5)
        assert (await server.get(f"/v1/jobs/{job_id}/tasks/a")).json()["status"] == "pending"


@pytest.mark.parametrize("of", ["day", "job", "task"])
@async_test
async def test_a_repeated_request_adds_once_and_another_request_adds_again(
    of: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path, others=DAILY_BUDGET) as server:
        job_id = await _submit_writers(server, of_job=10, of_each=10)
        path = {
            "day": "/v1/budget",
            "job": f"/v1/jobs/{job_id}/budget",
            "task": f"/v1/jobs/{job_id}/tasks/a/budget",
        }[of]

        first = await server.post(path, {"usd": 1}, headers={"Idempotency-Key": "one"})
        again = await server.post(path, {"usd": 1}, headers={"Idempotency-Key": "one"})
        other = await server.post(path, {"usd": 1}, headers={"Idempotency-Key": "two"})
        without = await server.post(path, {"usd": 1})

        assert (first.json()["limit"]["usd"], again.json()) == (11.0, first.json())
        assert (other.json()["limit"]["usd"], without.json()["limit"]["usd"]) == (12.0, 13.0)


@async_test
async def test_nothing_is_added_to_the_budget_of_a_job_or_task_that_has_ended(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, of_job=1, of_each=1)
        early = {"Idempotency-Key": "early"}
        for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/tasks/a"):
            assert (await server.post(f"{path}/budget", {"usd": 1}, headers=early)).is_success
        await server.post(f"/v1/jobs/{job_id}/cancel")

        for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/tasks/a"):
            late = await server.post(f"{path}/budget", {"usd": 1})
            # The first answer may have been lost, so the repeated request succeeds.
            repeated = await server.post(f"{path}/budget", {"usd": 1}, headers=early)

            assert (late.status_code, late.json()["type"]) == (409, REFUSED), path
            assert (repeated.status_code, repeated.json()["limit"]["usd"]) == (200, 2.0), path
            assert (await _limit(server, f"{path}/budget"))["usd"] == 2.0


@async_test
async def test_nothing_is_added_to_a_budget_without_a_limit(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, of_job={"usd": 1})

        for path, body in (
            ("/v1/budget", {"usd": 1}),
            (f"/v1/jobs/{job_id}/budget", {"tokens": 1}),
        ):
            answer = await server.post(path, body)
            assert answer.status_code == 400, path
            assert "to raise; " in answer.json()["detail"]
            assert (await server.get(path)).json()["added"] == NOTHING


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"usd": 0}, "usd"),
        ({"usd": -1}, "usd"),
        ({"usd": "5"}, "usd"),
        ({"usd": True}, "usd"),
        ({"usd": MAX_AMOUNT * 2}, "usd"),
        ({"usd": 10**300}, "usd"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": 1.5}, "tokens"),
        ({"tokens": MAX_AMOUNT + 1}, "tokens"),
        ({"minutes": -0.5}, "minutes"),
        ({"minutes": []}, "minutes"),
        ({"usd": 1, "euros": 1}, "euros"),
        ([], ""),
        ("usd", ""),
    ],
)
@async_test
async def test_an_invalid_amount_is_refused_with_the_path_of_the_field(
    body: Any, field: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path, others=DAILY_BUDGET) as server:
        answer = await server.post("/v1/budget", body)

        assert answer.status_code == 422, answer.text
        assert [error["path"] for error in answer.json()["errors"]] == [field]
        assert (await server.get("/v1/budget")).json()["added"] == NOTHING


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"usd": NaN}', 400),
        (b'{"usd": Infinity}', 400),
        (b'{"usd": 1e999}', 422),
        (b"", 400),
        (b"{}", 422),
        (b'{"usd": null}', 422),
    ],
)
@async_test
async def test_a_body_without_a_valid_amount_adds_nothing(
    body: bytes, status: int, tmp_path: Path
) -> None:
    async with run_server(tmp_path, others=DAILY_BUDGET) as server:
        answer = await server.post("/v1/budget", body)

        assert answer.status_code == status, answer.text
        assert (await server.get("/v1/budget")).json()["added"] == NOTHING


@async_test
async def test_reading_adding_and_adding_to_the_daily_budget_need_different_scopes(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, others=DAILY_BUDGET) as server:
        job_id = await _submit_writers(server, of_job=1, of_each=1)
        of_day, of_job = "/v1/budget", f"/v1/jobs/{job_id}/budget"
        paths = (of_day, of_job, f"/v1/jobs/{job_id}/tasks/a/budget")
        allowed = {
            KeyScope.READ: set[str](),
            KeyScope.SUBMIT: set[str](),
            KeyScope.OPERATE: set(paths[1:]),
            KeyScope.ADMIN: set(paths),
        }

        for scope, may in allowed.items():
            headers = {"x-api-key": await server.key(scope)}
            for path in paths:
                looked = await server.get(path, headers=headers)
                added = await server.post(path, {"usd": 1}, headers=headers)
                reads = scope in (KeyScope.READ, KeyScope.ADMIN)
                assert looked.status_code == (200 if reads else 403), (scope, path)
                assert added.status_code == (200 if path in may else 403), (scope, path)


@async_test
async def test_a_tenant_has_its_own_daily_budget_and_no_access_to_those_of_others(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, others=DAILY_BUDGET) as server:
        job_id = await _submit_writers(server, of_job=1, of_each=1)
        tomorrow = server.services.backend.clock.now() + timedelta(days=1)
        await park(server.services, task_id_of(job_id, "a"), scope=BudgetScope.DAY, until=tomorrow)
        other_tenant = {"x-api-key": await server.key(KeyScope.ADMIN, tenant="globex")}

        for path in (f"/v1/jobs/{job_id}/budget", f"/v1/jobs/{job_id}/tasks/a/budget"):
            looked = await server.get(path, headers=other_tenant)
            added = await server.post(path, {"usd": 1}, headers=other_tenant)
            assert (looked.status_code, added.status_code) == (404, 404), path
            assert (await _limit(server, path))["usd"] == 1.0
        own = await server.post("/v1/budget", {"usd": 1}, headers=other_tenant)

        assert own.json()["limit"]["usd"] == 11.0
        assert (await _limit(server, "/v1/budget"))["usd"] == 10.0
        assert (await server.get(f"/v1/jobs/{job_id}/tasks/a")).json()["status"] == "parked"


@pytest.mark.parametrize("path", ["/v1/jobs/job-x/budget", "/v1/jobs/job-x/tasks/a/budget"])
@async_test
async def test_the_budget_of_a_missing_job_or_task_is_not_found(path: str, tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        looked, added = await server.get(path), await server.post(path, {"usd": 1})

        assert (looked.status_code, added.status_code) == (404, 404)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        (20, Budget(usd=20.0)),
        (0.5, Budget(usd=0.5)),
        ({"usd": 1, "tokens": 5, "minutes": 2}, Budget(usd=1.0, tokens=5, minutes=2.0)),
        (None, Budget()),
    ],
)
@async_test
async def test_a_job_is_submitted_with_a_budget(
    budget: Any, expected: Budget, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.post("/v1/jobs", {"tasks": [a_task("a")], "budget": budget})
        job_id = answer.json()["jobId"]

        assert answer.status_code == 201
        standing = await server.services.budget_operations.get(TENANT, job_id)
        assert standing.limit == expected
        shown = await _limit(server, f"/v1/jobs/{job_id}/budget")
        assert (shown["usd"], shown["tokens"]) == (expected.usd, expected.tokens)


@pytest.mark.parametrize(
    "budget", [0, -1, "5", True, [], {}, {"usd": 0}, {"euros": 1}, {"tokens": 1.5}, MAX_AMOUNT + 1]
)
@async_test
async def test_a_job_with_an_invalid_budget_is_refused(budget: Any, tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.post("/v1/jobs", {"tasks": [a_task("a")], "budget": budget})

        assert answer.status_code == 422
        assert [error["path"] for error in answer.json()["errors"]] == ["budget"]
        assert (await server.get("/v1/jobs")).json()["jobs"] == []


@async_test
async def test_why_names_the_budget_that_is_used_up_and_the_command_that_adds_to_it(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, "a", "b", "c")
        cases = {
            "a": (
                BudgetScope.STEP,
                BudgetUnit.USD,
                "$1.00 of $1.00 is spent",
                f"{job_id}_a --usd 5",
            ),
            "b": (
                BudgetScope.JOB,
                BudgetUnit.TOKENS,
                "9 of 9 tokens are used",
                f"{job_id} --tokens 100000",
            ),
            "c": (
                BudgetScope.DAY,
                BudgetUnit.MINUTES,
                "9.0 of 9 minutes are used",
                "today --minutes 30",
            ),
        }

        for key, (scope, unit, why, remedy) in cases.items():
            task_id = task_id_of(job_id, key)
            reason = f"budget of it: {why}"
            await park(server.services, task_id, scope=scope, unit=unit, reason=reason)
            (reason,) = (await server.get(f"/v1/jobs/{job_id}/tasks/{key}/why")).json()["reasons"]

            assert (reason["code"], reason["requestId"]) == ("parked", task_id)
            assert why in reason["text"]
            assert reason["remedy"] == f"longshore budget add {remedy}"


@async_test
async def test_the_usage_of_a_job_counts_its_tasks_that_have_ended(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await _submit_writers(server, "a", "b")
        for key in ("a", "b"):
            await park(server.services, task_id_of(job_id, key))
        await server.post(f"/v1/jobs/{job_id}/tasks/a/cancel")
        while await server.services.dispatcher.step(timedelta()):
            continue

        job = (await server.get(f"/v1/jobs/{job_id}")).json()
        (listed,) = (await server.get("/v1/jobs")).json()["jobs"]

        assert job["usage"] == listed["usage"] == {"costUsd": 0.2, "turns": 2, "tokens": 1_100}
        assert [task["usage"]["costUsd"] for task in job["tasks"]] == [SPENT.cost_usd] * 2
