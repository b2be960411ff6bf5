"""What was told, through the HTTP door: of a job with its tasks, of everything; E5, E7."""

from pathlib import Path
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope
from longshore.services import queries
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server
from tests.interfaces.rest.streams import read_stream

STARTS = "Task Processing Started"


async def read_on(
    server: RestServer, path: str, last_event_id: str | None = None
) -> list[tuple[str, Any]]:
    """What a stream tells, with the ids, from its beginning or from where a reader was."""
    headers = {"Last-Event-ID": last_event_id} if last_event_id is not None else {}
    return [
        (id_, data)
        async for name, id_, data in read_stream(server, path, headers)
        if name == "event"
    ]


@async_test
async def test_a_job_s_events_and_its_tasks_are_streamed_and_go_on_where_a_reader_was(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        job_id = await door.submit(a_task("a"), a_task("b", "a"), a_task("c", "a"))
        path = f"/v1/jobs/{job_id}/events/stream"

        live = await read_on(door, path)
        later = [data for _, data in await read_on(door, path)]
        rests = {id_: await read_on(door, path, id_) for id_, _ in live}
        end = [data async for name, _, data in read_stream(door, path) if name == "end"]

        told = [data for _, data in live]
        assert later == told
        assert end == [{"status": "completed"}]
        assert {event["entityType"] for event in told} == {"JOB", "TASK"}
        assert told[-1]["eventType"] == "Job Completed"
        for number, (id_, _) in enumerate(live, start=1):
            assert [data for _, data in rests[id_]] == told[number:]


@async_test
async def test_a_reader_that_comes_back_again_and_again_misses_nothing_and_hears_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_SHORT_PAGE", 2)
    async with run_server(tmp_path, with_worker=True) as door:
        wait = ("sh", "-c", f"until test -e {tmp_path}/go; do sleep 0.02; done")
        job_id = await door.submit(a_task("a", argv=wait), *(a_task(f"b{n}", "a") for n in "123"))
        path = f"/v1/jobs/{job_id}/events/stream"
        heard: list[Any] = []
        mark, over = "", False

        while not over:
            async for name, id_, data in read_stream(door, path, {"Last-Event-ID": mark}):
                over = name == "end"
                if over:
                    break
                heard.append(data)
                mark = id_
                if data["eventType"] == STARTS:
                    (tmp_path / "go").touch()
                break  # cut off after every event

        assert heard == await door.events(job_id)
        assert len(heard) == len({event["eventId"] for event in heard})


@async_test
async def test_a_job_s_history_comes_in_pages_that_fit_together_while_more_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "_SHORT_PAGE", 2)
    async with run_server(tmp_path) as door:
        job_id = await door.submit(*(a_task(f"t{number}") for number in range(6)))
        other = await door.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/events"
        seen: list[Any] = []

        page = (await door.get(f"{path}?limit=3")).json()
        seen += page["events"]
        await door.post(f"/v1/jobs/{other}/cancel")
        while page["cursor"] is not None:
            page = (await door.get(path, params={"limit": 3, "cursor": page["cursor"]})).json()
            seen += page["events"]
        nothing = (await door.get(path, params={"cursor": page["end"]})).json()
        await door.post(f"/v1/jobs/{job_id}/tasks/t0/cancel")
        news = (await door.get(path, params={"cursor": page["end"]})).json()
        await door.post(f"/v1/jobs/{job_id}/cancel")
        newest = (await door.get(path, params={"cursor": news["end"]})).json()

        assert (nothing["events"], nothing["cursor"]) == ([], None)
        assert "Task Cancelled" in {event["eventType"] for event in news["events"]}
        assert [*seen, *news["events"], *newest["events"]] == await door.events(job_id)
        assert {event["entityId"].partition("_")[0] for event in seen} == {job_id}


@async_test
async def test_a_job_s_own_events_can_be_had_without_those_of_its_tasks(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        job_id = await door.submit(a_task("a"))
        await door.until(job_id, "completed")
        path = f"/v1/jobs/{job_id}/events"

        own = (await door.get(f"{path}?tasks=false")).json()["events"]
        streamed_ = [data for _, data in await read_on(door, f"{path}/stream?tasks=false")]

        assert [event["entityType"] for event in own] == ["JOB"] * len(own)
        assert (
            own == streamed_ == [e for e in await door.events(job_id) if e["entityType"] == "JOB"]
        )


@pytest.mark.parametrize("mark", ["x", "WyJqb2JzIiw1LCJhIl0", "WyJldmVudHMiLDEuNV0", ".1.00000000"])
@async_test
async def test_a_place_that_there_is_not_is_told_before_a_stream_begins(
    mark: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as door:
        job_id = await door.submit(a_task("a"))
        path = f"/v1/jobs/{job_id}/events"

        answers = [
            await door.get(f"{path}/stream", headers={"Last-Event-ID": mark}),
            await door.get(path, params={"cursor": mark}),
            await door.get("/v1/events", params={"cursor": mark}),
        ]

        assert [answer.status_code for answer in answers] == [400] * 3
        assert (await door.get("/v1/events?cursor=a b")).status_code == 422


@async_test
async def test_events_are_found_by_app_type_entity_and_job_with_durable_cursors(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        first = await door.submit(a_task("a"), a_task("b", argv=("false",)))
        await door.until(first, "failed")
        ends = {"eventType": "Job Completed"}
        bookmark = (await door.get("/v1/events", params=ends)).json()["end"]
        second = await door.submit(a_task("a"))
        await door.until(second, "completed")

        async def found(**wanted: str) -> list[dict[str, Any]]:
            page = (await door.get("/v1/events", params={"limit": 1000, **wanted})).json()
            assert page["cursor"] is None
            events: list[dict[str, Any]] = page["events"]
            return events

        everything = await found()
        app = everything[0]["app"]
        assert await found(app=app) == everything
        assert await found(app="another") == []
        assert await found(jobId=second) == await door.events(second)
        assert await found(cursor=bookmark, **ends) == await door.events(second, "Job Completed")
        # A place in one list means nothing in another.
        assert (await door.get("/v1/events", params={"cursor": bookmark})).status_code == 400
        assert {event["entityId"] for event in await found(eventType="Task Failed")} == {
            f"{first}_b"
        }
        of_task = await found(entity=f"TASK#{first}_b")
        page = (await door.get(f"/v1/jobs/{first}/tasks/b/events")).json()
        assert of_task == page["events"]
        last = (await door.get(f"/v1/jobs/{first}/tasks/b")).json()["lastEvent"]
        assert last["type"] == of_task[-1]["eventType"] == "Task Failed"
        assert (await door.get("/v1/tasks?status=failed")).json()["tasks"][0]["taskId"] == "b"


@async_test
async def test_an_event_is_whole_with_all_keys_of_the_wire(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as door:
        # Too long to stand in a row.
        say = """printf '{"type":"result","value":"%05000d"}\\n' 7 >&3"""
        job_id = await door.submit(a_task("a", argv=("sh", "-c", say)))
        await door.until(job_id, "completed")

        (event,) = await door.events(job_id, "Task Completed")

        assert event["GSI1PK"] == f"TASK#{job_id}_a"
        assert (event["PK"], event["tenantId"]) == ("TENANT#acme", "acme")
        assert event["properties"]["output"] == f"{7:05000d}"


@async_test
async def test_what_was_done_to_keys_is_shown_to_administrators_alone(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        await door.submit(a_task("a"))
        reader = {"x-api-key": await door.key(ApiScope.READ, ApiScope.OPERATE, ApiScope.SUBMIT)}

        shown = (await door.get("/v1/events?entity=SYSTEM%23keys")).json()["events"]
        hidden = (await door.get("/v1/events?entity=SYSTEM%23keys", headers=reader)).json()
        rest = (await door.get("/v1/events", headers=reader)).json()["events"]

        assert {event["properties"]["action"] for event in shown} == {"key.created"}
        assert hidden["events"] == []
        assert rest
        assert {event["entityType"] for event in rest} == {"JOB", "TASK"}


@async_test
async def test_events_say_when_they_may_be_dropped_where_they_are_not_kept_for_ever(
    tmp_path: Path,
) -> None:
    limits = {"events_ttl_days": 30}
    async with run_server(tmp_path, others={"sizes": limits}) as door:
        job_id = await door.submit(a_task("a"))

        event = (await door.events(job_id))[0]

        assert event["ttl"] == event["timestamp"] // 1000 + 30 * 24 * 60 * 60
