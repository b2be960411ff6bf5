"""The output of tasks over HTTP: of whole jobs and of single attempts; J3."""

import asyncio
from pathlib import Path
from typing import Any

from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server
from tests.interfaces.rest.streams import read_stream


async def _printed(server: RestServer, path: str) -> tuple[list[Any], Any]:
    pieces, end = [], None
    async for name, id_, data in read_stream(server, path):
        if name == "output":
            pieces.append((id_, data))
        else:
            end = data
    return pieces, end


@async_test
async def test_the_output_of_all_tasks_of_a_running_job_is_one_stream(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        say = "for i in 1 2 3; do echo $0 $i; done"
        job_id = await server.submit(
            a_task("a", argv=("sh", "-c", say, "a")),
            a_task("b", argv=("sh", "-c", say, "b")),
            a_task("c", "a", "b", argv=("sh", "-c", say, "c")),
        )

        live, end = await _printed(server, f"/v1/jobs/{job_id}/output/stream")
        stored, _ = await _printed(server, f"/v1/jobs/{job_id}/output/stream?follow=false")

        for pieces in (live, stored):
            for key in "abc":
                text = "".join(piece["text"] for _, piece in pieces if piece["taskId"] == key)
                assert text == "".join(f"{key} {number}\n" for number in (1, 2, 3))
            assert [piece["taskId"] for _, piece in pieces][-1] == "c"
            assert {piece["jobId"] for _, piece in pieces} == {job_id}
            # Without ids, a browser does not try to resume the stream.
            assert {id_ for id_, _ in pieces} == {""}
        assert [piece["at"] for _, piece in stored] == sorted(piece["at"] for _, piece in stored)
        assert end == {"status": "completed"}


@async_test
async def test_the_stored_output_of_a_running_job_can_be_read_without_waiting(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=("sh", "-c", "echo begun; sleep 1000")))
        while not (await server.get(f"/v1/jobs/{job_id}/tasks/a/output")).json()["output"]:
            await asyncio.sleep(0.02)  # another process works on it

        pieces, end = await _printed(server, f"/v1/jobs/{job_id}/output/stream?follow=false")

        assert [piece["text"] for _, piece in pieces] == ["begun\n"]
        assert end == {"status": "running"}
        await server.post(f"/v1/jobs/{job_id}/cancel")
        await server.until(job_id, "cancelled")


@async_test
async def test_the_stream_of_an_attempt_ends_with_the_attempt_also_if_the_task_is_retried(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        definition = {
            "runner": "command",
            "overridable": ["argv"],
            "retryableExitCodes": [9],
            "retry": {"maxAttempts": 2, "base": "10ms", "cap": "20ms"},
        }
        await server.send("PUT", "/v1/task-definitions/second-longer", definition)
        say = "echo try $LONGSHORE_ATTEMPT; test $LONGSHORE_ATTEMPT = 1 && exit 9; sleep 1000"
        job_id = await server.submit(
            {"taskId": "a", "name": "second-longer", "input": {"argv": ["sh", "-c", say]}}
        )

        pieces, end = await _printed(server, f"/v1/jobs/{job_id}/tasks/a/output/stream?attempt=1")

        assert [piece["text"] for _, piece in pieces] == ["try 1\n"]
        assert end in ({"status": "pending"}, {"status": "processing"})
        await server.post(f"/v1/jobs/{job_id}/cancel")
        await server.until(job_id, "cancelled")


@async_test
async def test_the_output_of_one_attempt_can_be_read_separately(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        definition = {
            "runner": "command",
            "overridable": ["argv"],
            "retryableExitCodes": [9],
            "retry": {"maxAttempts": 3, "base": "10ms", "cap": "20ms"},
        }
        await server.send("PUT", "/v1/task-definitions/flaky", definition)
        say = f"echo try $LONGSHORE_ATTEMPT; test -e {tmp_path}/2 && exit 0; "
        say += f"test -e {tmp_path}/1 && touch {tmp_path}/2; touch {tmp_path}/1; exit 9"
        job_id = await server.submit(
            {"taskId": "a", "name": "flaky", "input": {"argv": ["sh", "-c", say]}}
        )
        await server.until(job_id, "completed")
        path = f"/v1/jobs/{job_id}/tasks/a/output"

        async def of(attempt: int) -> list[str]:
            page = (await server.get(f"{path}?attempt={attempt}")).json()["output"]
            pieces, _ = await _printed(server, f"{path}/stream?attempt={attempt}")
            whole, _ = await _printed(server, f"/v1/jobs/{job_id}/output/stream?attempt={attempt}")
            texts = [piece["text"] for piece in page]
            assert texts == [data["text"] for _, data in pieces]
            assert texts == [data["text"] for _, data in whole]
            return texts

        assert [await of(attempt) for attempt in (1, 2, 3, 4)] == [
            ["try 1\n"],
            ["try 2\n"],
            ["try 3\n"],
            [],
        ]
        everything = (await server.get(path)).json()["output"]
        assert [piece["id"] for piece in everything] == ["1.1", "2.1", "3.1"]
        rest = (await server.get(f"{path}?attempt=1&after=1.1")).json()["output"]
        assert rest == []
        assert (await server.get(f"{path}?attempt=0")).status_code == 422
