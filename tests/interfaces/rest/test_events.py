"""Events over HTTP: those of a job with its tasks, and those of everything; E5, E7."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server
from tests.interfaces.rest.streams import read_stream

STARTS = "Task Processing Started"


async def read_on(
    server: RestServer, path: str, last_event_id: str | None = None
) -> list[tuple[str, Any]]:
    """The events of a stream with their ids, from the beginning or after an event id."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id is not None else {}
    return [
        (id_, data)
        async for name, id_, data in read_stream(server, path, headers)
        if name == "event"
    ]


@async_test
async def test_the_event_stream_of_a_job_includes_its_tasks_and_resumes_after_an_event_id(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a"), a_task("b", "a"), a_task("c", "a"))
        path = f"/v1/jobs/{job_id}/events/stream"

        live = await read_on(server, path)
        later = [data for _, data in await read_on(server, path)]
        rests = {id_: await read_on(server, path, id_) for id_, _ in live}
        end = [data async for name, _, data in read_stream(server, path) if name == "end"]

        events = [data for _, data in live]
        assert later == events
        assert end == [{"status": "completed"}]
        assert {event["entityType"] for event in events} == {"JOB", "TASK"}
        assert events[-1]["eventType"] == "Job Completed"
        for number, (id_, _) in enumerate(live, start=1):
            assert [data for _, data in rests[id_]] == events[number:]


@async_test
async def test_a_reader_that_reconnects_after_every_event_gets_each_event_once(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        wait = ("sh", "-c", f"until test -e {tmp_path}/go; do sleep 0.02; done")
        job_id = await server.submit(a_task("a", argv=wait), *(a_task(f"b{n}", "a") for n in "123"))
        path = f"/v1/jobs/{job_id}/events/stream"
        events: list[Any] = []
        last_id, over = "", False

        while not over:
            async for name, id_, data in read_stream(server, path, {"Last-Event-ID": last_id}):
                over = name == "end"
                if over:
                    break
                events.append(data)
                last_id = id_
                if data["eventType"] == STARTS:
                    (tmp_path / "go").touch()
                break  # cut off after every event

        assert events == await server.events(job_id)
        assert len(events) == len({event["eventId"] for event in events})


@async_test
async def test_pages_of_a_job_s_events_are_complete_while_events_are_added(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(*(a_task(f"t{number}") for number in range(6)))
        other = await server.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/events"
        seen: list[Any] = []

        page = (await server.get(f"{path}?limit=3")).json()
        seen += page["events"]
        await server.post(f"/v1/jobs/{other}/cancel")
        while page["cursor"] is not None:
            page = (await server.get(path, params={"limit": 3, "cursor": page["cursor"]})).json()
            seen += page["events"]
        nothing = (await server.get(path, params={"cursor": page["end"]})).json()
        await server.post(f"/v1/jobs/{job_id}/tasks/t0/cancel")
        news = (await server.get(path, params={"cursor": page["end"]})).json()
        await server.post(f"/v1/jobs/{job_id}/cancel")
        newest = (await server.get(path, params={"cursor": news["end"]})).json()

        assert (nothing["events"], nothing["cursor"]) == ([], None)
        assert "Task Cancelled" in {event["eventType"] for event in news["events"]}
        assert [*seen, *news["events"], *newest["events"]] == await server.events(job_id)
        assert {event["entityId"].partition("_")[0] for event in seen} == {job_id}


@async_test
async def test_the_events_of_a_job_can_be_read_without_those_of_its_tasks(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a"))
        await server.until(job_id, "completed")
        path = f"/v1/jobs/{job_id}/events"

        own = (await server.get(f"{path}?tasks=false")).json()["events"]
        streamed_ = [data for _, data in await read_on(server, f"{path}/stream?tasks=false")]

        assert [event["entityType"] for event in own] == ["JOB"] * len(own)
        assert (
            own == streamed_ == [e for e in await server.events(job_id) if e["entityType"] == "JOB"]
        )


@pytest.mark.parametrize("cursor", ["x", "WyJqb2JzIiw1LCJhIl0", "WyJldmVudHMiLDEuNV0", ".00000000"])
@async_test
async def test_an_invalid_cursor_is_refused_before_a_stream_begins(
    cursor: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/events"

        answers = [
            await server.get(f"{path}/stream", headers={"Last-Event-ID": cursor}),
            await server.get(path, params={"cursor": cursor}),
            await server.get("/v1/events", params={"cursor": cursor}),
        ]

        assert [answer.status_code for answer in answers] == [400] * 3
        assert (await server.get("/v1/events?cursor=a b")).status_code == 422


@async_test
async def test_events_are_found_by_app_type_entity_and_job_with_durable_cursors(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        first = await server.submit(a_task("a"), a_task("b", argv=("false",)))
        await server.until(first, "failed")
        ends = {"eventType": "Job Completed"}
        bookmark = (await server.get("/v1/events", params=ends)).json()["end"]
        second = await server.submit(a_task("a"))
        await server.until(second, "completed")

        async def list_events(**filters: str) -> list[dict[str, Any]]:
            page = (await server.get("/v1/events", params={"limit": 1000, **filters})).json()
            assert page["cursor"] is None
            events: list[dict[str, Any]] = page["events"]
            return events

        everything = await list_events()
        app = everything[0]["app"]
        assert await list_events(app=app) == everything
        assert await list_events(app="another") == []
        assert await list_events(jobId=second) == await server.events(second)
        assert await list_events(cursor=bookmark, **ends) == await server.events(
            second, "Job Completed"
        )
        # A cursor of one list is not valid in another.
        assert (await server.get("/v1/events", params={"cursor": bookmark})).status_code == 400
        assert {event["entityId"] for event in await list_events(eventType="Task Failed")} == {
            f"{first}_b"
        }
        of_task = await list_events(entity=f"TASK#{first}_b")
        page = (await server.get(f"/v1/jobs/{first}/tasks/b/events")).json()
        assert of_task == page["events"]
        last = (await server.get(f"/v1/jobs/{first}/tasks/b")).json()["lastEvent"]
        assert last["type"] == of_task[-1]["eventType"] == "Task Failed"
        assert (await server.get("/v1/tasks?status=failed")).json()["tasks"][0]["taskId"] == "b"


@async_test
async def test_an_event_is_whole_with_all_keys_of_the_wire(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        # Too long to stand in a row.
        say = """printf '{"type":"result","value":"%05000d"}\\n' 7 >&3"""
        job_id = await server.submit(a_task("a", argv=("sh", "-c", say)))
        await server.until(job_id, "completed")

        (event,) = await server.events(job_id, "Task Completed")

        assert event["GSI1PK"] == f"TASK#{job_id}_a"
        assert (event["PK"], event["tenantId"]) == ("TENANT#acme", "acme")
        assert event["properties"]["output"] == f"{7:05000d}"


@async_test
async def test_events_about_keys_are_visible_to_administrators_only(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        await server.submit(a_task("a"))
        reader = {"x-api-key": await server.key(ApiScope.READ, ApiScope.OPERATE, ApiScope.SUBMIT)}

        shown = (await server.get("/v1/events?entity=SYSTEM%23keys")).json()["events"]
        hidden = (await server.get("/v1/events?entity=SYSTEM%23keys", headers=reader)).json()
        rest = (await server.get("/v1/events", headers=reader)).json()["events"]

        assert {event["properties"]["action"] for event in shown} == {"key.created"}
        assert hidden["events"] == []
        assert rest
        assert {event["entityType"] for event in rest} == {"JOB", "TASK"}
