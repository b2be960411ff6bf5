"""Jobs as graphs, run by a real worker behind the HTTP server: J4, J5, J6."""

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from longshore.wiring.services import open_services
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server, settings_in

BLANKS = 200_000
SAYS_NUMBER = ("sh", "-c", 'echo "{\\"type\\":\\"result\\",\\"value\\":$0}" >&3')
SAYS_MUCH = ("sh", "-c", f'printf \'{{"type":"result","value":"%{BLANKS}s"}}\\n\' x >&3')
SHOWS = ("sh", "-c", "cat $LONGSHORE_ATTEMPT_DEPENDENCIES")


async def _printed(server: RestServer, job_id: str, key: str) -> str:
    text, after = "", "0.0"
    while True:
        path = f"/v1/jobs/{job_id}/tasks/{key}/output?limit=1000&after={after}"
        pieces = (await server.get(path)).json()["output"]
        if not pieces:
            return text
        text += "".join(piece["text"] for piece in pieces)
        after = pieces[-1]["id"]


def _diamonds(many: int) -> list[dict[str, Any]]:
    """A graph: one task, then many that depend on it, then one that depends on all of these."""
    between = [f"m{number}" for number in range(many)]
    return [a_task("first"), *(a_task(key, "first") for key in between), a_task("last", *between)]


@async_test
async def test_a_task_begins_when_all_before_it_are_done_and_gets_their_results(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(
            a_task("a", argv=(*SAYS_NUMBER, "1")),
            a_task("b", "a", argv=(*SAYS_NUMBER, "2")),
            a_task("c", "a", "b", argv=SHOWS),
            a_task("big", argv=SAYS_MUCH),
            a_task("d", "big", argv=SHOWS),
        )

        await server.until(job_id, "completed")

        assert json.loads(await _printed(server, job_id, "c")) == {"a": 1, "b": 2}
        # A result that is too large for a row or a message arrives whole, too.
        assert json.loads(await _printed(server, job_id, "d")) == {"big": "x".rjust(BLANKS)}
        events = [
            (event["entityId"].removeprefix(f"{job_id}_"), event["eventType"])
            for event in await server.events(job_id, "Task Processing Started", "Task Completed")
        ]
        for before, after in (("a", "b"), ("b", "c"), ("a", "c"), ("big", "d")):
            done = events.index((before, "Task Completed"))
            assert done < events.index((after, "Task Processing Started"))


@async_test
async def test_each_task_is_sent_once_also_when_two_dispatchers_settle_the_same_tasks(
    tmp_path: Path,
) -> None:
    async with (
        run_server(tmp_path, with_worker=True) as server,
        open_services(settings_in(tmp_path)) as elsewhere,
    ):
        job_id = await server.submit(*_diamonds(8))
        keys = list((await server.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"])

        async def also_dispatches() -> None:
            while True:
                await elsewhere.dispatcher.settle([f"{job_id}_{key}" for key in keys])
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(also_dispatches())
        await server.until(job_id, "completed")
        beside.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beside

        counts = Counter(
            (event["entityId"].removeprefix(f"{job_id}_"), event["eventType"])
            for event in await server.events(job_id)
        )
        for kind in ("Task Pending", "Task Processing Started", "Task Completed"):
            assert {key: counts[key, kind] for key in keys} == dict.fromkeys(keys, 1)
        assert counts[job_id, "Job Completed"] == 1


@async_test
async def test_a_job_ends_after_every_kind_of_end_of_its_tasks(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        hangs = {
            "runner": "command",
            "timeout": "300ms",
            "retry": {"maxAttempts": 1},
            "options": {"argv": ["sleep", "1000"]},
        }
        await server.send("PUT", "/v1/task-definitions/hangs", hangs)
        job_id = await server.submit(
            {"taskId": "timed-out", "name": "hangs"},
            a_task("behind-timed-out", "timed-out"),
            a_task("cancelled", argv=("sleep", "1000")),
            a_task("behind-cancelled", "cancelled"),
            a_task("failed", argv=("false",)),
            a_task("behind-failed", "failed"),
            a_task("done"),
            a_task("behind-done", "done"),
        )
        await server.until_task(job_id, "cancelled", "processing")
        await server.post(f"/v1/jobs/{job_id}/tasks/cancelled/cancel")

        job = await server.until(job_id, "failed", "completed", "cancelled")

        statuses = (await server.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"]
        assert job["status"] == "failed"
        assert statuses == {
            "timed-out": "failed",
            "behind-timed-out": "waiting",
            "cancelled": "cancelled",
            "behind-cancelled": "waiting",
            "failed": "failed",
            "behind-failed": "waiting",
            "done": "completed",
            "behind-done": "completed",
        }
        assert job["progress"] == {
            "completed": 2,
            "failed": 2,
            "cancelled": 1,
            "blocked": 3,
            "open": 0,
        }
        assert len(await server.events(job_id, "Task Timeout")) == 1
        assert await server.events(job_id, "Job Completed") == []


@async_test
async def test_a_failure_is_recorded_once_a_round_and_independent_tasks_still_run(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path / "data", with_worker=True) as server:
        go = tmp_path / "go"
        waits = ("sh", "-c", f"until test -e {go}; do sleep 0.02; done")
        job_id = await server.submit(
            a_task("bad", argv=("false",)),
            a_task("bad-too", argv=("false",)),
            a_task("behind", "bad"),
            a_task("slow", argv=waits),
            a_task("after-slow", "slow"),
        )
        for key in ("bad", "bad-too"):
            await server.until_task(job_id, key, "failed")
        await server.until_task(job_id, "slow", "processing")
        meanwhile = (await server.get(f"/v1/jobs/{job_id}")).json()
        go.touch()
        failed = await server.until(job_id, "failed")
        first = await server.events(job_id, "Job Failure Detected")

        await server.post(f"/v1/jobs/{job_id}/resume")
        while (await server.get(f"/v1/jobs/{job_id}/tasks/bad")).json()["attempt"] < 2:
            await asyncio.sleep(0.02)  # another process works on it
        await server.until(job_id, "failed")

        assert meanwhile["status"] == "running"
        assert {task["taskId"]: task["status"] for task in failed["tasks"]} == {
            "bad": "failed",
            "bad-too": "failed",
            "behind": "waiting",
            "slow": "completed",
            "after-slow": "completed",
        }
        assert len(first) == 1
        assert len(await server.events(job_id, "Job Failure Detected")) == 2
        attempts = (await server.get(f"/v1/jobs/{job_id}")).json()["tasks"]
        assert {task["taskId"]: task["attempt"] for task in attempts}["slow"] == 1


@async_test
async def test_a_job_s_state_follows_from_its_tasks(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        jobs = {
            "completed": await server.submit(a_task("a"), a_task("b", "a")),
            "failed": await server.submit(a_task("a"), a_task("b", "a", argv=("false",))),
            "cancelled": await server.submit(a_task("a", argv=("sleep", "1000")), a_task("b", "a")),
            "running": await server.submit(a_task("a", delay=1_000)),
        }
        await server.post(f"/v1/jobs/{jobs['cancelled']}/cancel")

        for status in ("completed", "failed", "cancelled"):
            assert (await server.until(jobs[status], status))["finishedAt"] is not None
        listed = (await server.get("/v1/jobs")).json()["jobs"]

        assert {job["status"]: job["jobId"] for job in listed} == jobs
