"""Jobs as graphs, run by a real crew behind the HTTP door: J4, J5, J6."""

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
    """One before many, many before one."""
    between = [f"m{number}" for number in range(many)]
    return [a_task("first"), *(a_task(key, "first") for key in between), a_task("last", *between)]


@async_test
async def test_a_task_begins_when_all_before_it_are_done_and_gets_their_results(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        job_id = await door.submit(
            a_task("a", argv=(*SAYS_NUMBER, "1")),
            a_task("b", "a", argv=(*SAYS_NUMBER, "2")),
            a_task("c", "a", "b", argv=SHOWS),
            a_task("big", argv=SAYS_MUCH),
            a_task("d", "big", argv=SHOWS),
        )

        await door.until(job_id, "completed")

        assert json.loads(await _printed(door, job_id, "c")) == {"a": 1, "b": 2}
        # One that is too large to stand in a row or a message arrives whole all the same.
        assert json.loads(await _printed(door, job_id, "d")) == {"big": "x".rjust(BLANKS)}
        order = [
            (event["entityId"].removeprefix(f"{job_id}_"), event["eventType"])
            for event in await door.events(job_id, "Task Processing Started", "Task Completed")
        ]
        for before, after in (("a", "b"), ("b", "c"), ("a", "c"), ("big", "d")):
            done = order.index((before, "Task Completed"))
            assert done < order.index((after, "Task Processing Started"))


@async_test
async def test_each_task_is_sent_once_also_when_two_dispatch_at_once_and_hear_everything_twice(
    tmp_path: Path,
) -> None:
    async with (
        run_server(tmp_path, with_worker=True) as door,
        open_services(settings_in(tmp_path)) as elsewhere,
    ):
        job_id = await door.submit(*_diamonds(8))
        keys = list((await door.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"])

        async def also_dispatches() -> None:
            while True:
                await elsewhere.dispatcher.settle([f"{job_id}_{key}" for key in keys])
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(also_dispatches())
        await door.until(job_id, "completed")
        beside.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beside

        told = Counter(
            (event["entityId"].removeprefix(f"{job_id}_"), event["eventType"])
            for event in await door.events(job_id)
        )
        for kind in ("Task Pending", "Task Processing Started", "Task Completed"):
            assert {key: told[key, kind] for key in keys} == dict.fromkeys(keys, 1)
        assert told[job_id, "Job Completed"] == 1


@async_test
async def test_every_way_in_which_a_task_ends_moves_its_job_on(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        hangs = {
            "runner": "command",
            "timeout": "300ms",
            "retry": {"maxAttempts": 1},
            "options": {"argv": ["sleep", "1000"]},
        }
        await door.send("PUT", "/v1/task-definitions/hangs", hangs)
        job_id = await door.submit(
            {"taskId": "timed-out", "name": "hangs"},
            a_task("behind-timed-out", "timed-out"),
            a_task("cancelled", argv=("sleep", "1000")),
            a_task("behind-cancelled", "cancelled"),
            a_task("failed", argv=("false",)),
            a_task("behind-failed", "failed"),
            a_task("done"),
            a_task("behind-done", "done"),
        )
        await door.until_task(job_id, "cancelled", "processing")
        await door.post(f"/v1/jobs/{job_id}/tasks/cancelled/cancel")

        job = await door.until(job_id, "failed", "completed", "cancelled")

        statuses = (await door.get(f"/v1/jobs/{job_id}/statuses")).json()["statuses"]
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
        assert len(await door.events(job_id, "Task Timeout")) == 1
        assert await door.events(job_id, "Job Completed") == []


@async_test
async def test_a_failure_is_told_once_a_round_and_what_does_not_depend_on_it_goes_on(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path / "data", with_worker=True) as door:
        go = tmp_path / "go"
        waits = ("sh", "-c", f"until test -e {go}; do sleep 0.02; done")
        job_id = await door.submit(
            a_task("bad", argv=("false",)),
            a_task("bad-too", argv=("false",)),
            a_task("behind", "bad"),
            a_task("slow", argv=waits),
            a_task("after-slow", "slow"),
        )
        for key in ("bad", "bad-too"):
            await door.until_task(job_id, key, "failed")
        await door.until_task(job_id, "slow", "processing")
        meanwhile = (await door.get(f"/v1/jobs/{job_id}")).json()
        go.touch()
        failed = await door.until(job_id, "failed")
        first = await door.events(job_id, "Job Failure Detected")

        await door.post(f"/v1/jobs/{job_id}/resume")
        while (await door.get(f"/v1/jobs/{job_id}/tasks/bad")).json()["attempt"] < 2:
            await asyncio.sleep(0.02)  # another process works on it
        await door.until(job_id, "failed")

        assert meanwhile["status"] == "running"
        assert {task["taskId"]: task["status"] for task in failed["tasks"]} == {
            "bad": "failed",
            "bad-too": "failed",
            "behind": "waiting",
            "slow": "completed",
            "after-slow": "completed",
        }
        assert len(first) == 1
        assert len(await door.events(job_id, "Job Failure Detected")) == 2
        attempts = (await door.get(f"/v1/jobs/{job_id}")).json()["tasks"]
        assert {task["taskId"]: task["attempt"] for task in attempts}["slow"] == 1


@async_test
async def test_a_job_s_state_follows_from_its_tasks(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        jobs = {
            "completed": await door.submit(a_task("a"), a_task("b", "a")),
            "failed": await door.submit(a_task("a"), a_task("b", "a", argv=("false",))),
            "cancelled": await door.submit(a_task("a", argv=("sleep", "1000")), a_task("b", "a")),
            "running": await door.submit(a_task("a", delay=1_000)),
        }
        await door.post(f"/v1/jobs/{jobs['cancelled']}/cancel")

        for status in ("completed", "failed", "cancelled"):
            assert (await door.until(jobs[status], status))["finishedAt"] is not None
        listed = (await door.get("/v1/jobs")).json()["jobs"]

        assert {job["status"]: job["jobId"] for job in listed} == jobs
