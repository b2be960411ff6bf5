"""Dead letters over HTTP: H5."""

from datetime import timedelta
from pathlib import Path
from typing import Any

from longshore.core.api_keys import ApiScope
from longshore.core.maximums import RECEIVE_LIMIT
from longshore.ports.task_queue import OutgoingMessage
from tests.interfaces.rest.server import RestServer, a_task, async_test, run_server

FAILS = ("sh", "-c", "exit 3")
NO_TIME = timedelta(0)
LETTERS = "/v1/dead-letters"


async def poison(server: RestServer, queue: str = "mail") -> None:
    """A message that leads nowhere, received too often."""
    messages = server.services.backend.require_queue()
    await messages.send([OutgoingMessage(queue=queue, body="what is this")])
    for _ in range(RECEIVE_LIMIT + 1):
        await messages.receive([queue], limit=1, hidden_for=NO_TIME, wait=NO_TIME)


async def counted(server: RestServer, **filters: Any) -> dict[str, Any]:
    counts: dict[str, Any] = (await server.get(f"{LETTERS}/counts", params=filters)).json()
    page = (await server.get(LETTERS, params=filters)).json()
    assert counts["count"] == page["count"] == len(page["deadLetters"])
    return counts


@async_test
async def test_the_counts_of_a_filter_match_what_its_replay_affects(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_messages=True, with_worker=True) as server:
        early = await server.submit(a_task("a", argv=FAILS), a_task("b", argv=FAILS))
        await server.until(early, "failed")
        late = await server.submit(a_task("c", argv=("no-such-command",)))
        await server.until(late, "failed")
        died = (await server.get(f"/v1/jobs/{late}/tasks/c")).json()
        await poison(server)

        everything = await counted(server)
        since = await counted(server, since=died["finishedAt"], name="command")
        of_job = await counted(server, jobId=early, queue="default", category="exit-code")
        matching = {"since": died["finishedAt"], "name": "command"}
        replayed = (await server.post(f"{LETTERS}/replay", {"matching": matching})).json()
        again = (
            await server.post(f"{LETTERS}/replay", {"ids": [f"{early}_a", f"{late}_c"]})
        ).json()

        assert {key: everything[key] for key in ("count", "tasks", "messages")} == {
            "count": 4,
            "tasks": 3,
            "messages": 1,
        }
        assert everything["kinds"][0] == {"queue": "default", "category": "exit-code", "count": 2}
        assert {"queue": "mail", "category": "message", "count": 1} in everything["kinds"]
        assert (since["tasks"], since["kinds"][0]["category"]) == (1, died["error"]["category"])
        assert of_job["tasks"] == 2
        assert replayed == {
            "replayed": [{"requestId": f"{late}_c", "round": 2}],
            "skipped": [],
        }
        # The other has been replayed just now, or has even failed again since.
        assert {"requestId": f"{early}_a", "round": 2} in again["replayed"]
        for job_id in (early, late):
            await server.until(job_id, "failed")


@async_test
async def test_a_message_without_a_task_is_read_and_discarded(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_messages=True) as server:
        await poison(server)
        (letter,) = (await server.get(LETTERS)).json()["deadLetters"]
        path = f"{LETTERS}/{letter['id']}"

        examined = (await server.get(path)).json()
        discarded = await server.send("DELETE", path)

        assert (letter["kind"], letter["receives"]) == ("message", RECEIVE_LIMIT)
        assert (examined["body"], examined["bodyBytes"]) == ("what is this", 12)
        assert examined["sentAt"] is not None
        assert (discarded.status_code, discarded.json()) == (200, letter)
        assert (await server.get(path)).status_code == 404
        assert (await server.get(LETTERS)).json()["count"] == 0
        events = (await server.get("/v1/events?entity=QUEUE%23mail")).json()["events"]
        assert events[-1]["properties"]["reason"].startswith("discarded by ann")


@async_test
async def test_the_dead_letter_of_a_failed_task_cannot_be_discarded(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=FAILS))
        await server.until(job_id, "failed")

        answer = await server.send("DELETE", f"{LETTERS}/{job_id}_a")

        assert (answer.status_code, answer.json()["type"]) == (409, "urn:longshore:problem:refused")
        assert (await server.get(LETTERS)).json()["count"] == 1


@async_test
async def test_pages_of_dead_letters_are_complete_while_more_are_added(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        keys = [f"t{number}" for number in range(5)]
        job_id = await server.submit(*(a_task(key, argv=FAILS) for key in keys))
        await server.until(job_id, "failed")

        page = (await server.get(f"{LETTERS}?limit=2")).json()
        seen = [letter["id"] for letter in page["deadLetters"]]
        more = await server.submit(a_task("late", argv=FAILS))
        await server.until(more, "failed")
        while page["cursor"]:
            page = (await server.get(LETTERS, params={"limit": 2, "cursor": page["cursor"]})).json()
            seen += [letter["id"] for letter in page["deadLetters"]]

        assert sorted(seen) == [f"{job_id}_{key}" for key in keys]


@async_test
async def test_an_invalid_filter_is_refused_with_the_paths_of_its_fields(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        query = await server.get(f"{LETTERS}/counts?since=soon&category=sad")
        body = await server.post(f"{LETTERS}/replay", {"matching": {"since": "2030-01-31"}})

        assert [error["path"] for error in query.json()["errors"]] == [
            "query.category",
            "query.since",
        ]
        assert [error["path"] for error in body.json()["errors"]] == ["matching.since"]


@async_test
async def test_a_message_without_a_task_is_visible_to_the_operator_tenant_only(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path, with_messages=True) as server:
        await poison(server)
        (letter,) = (await server.get(LETTERS)).json()["deadLetters"]
        path = f"{LETTERS}/{letter['id']}"
        other = {"x-api-key": await server.key(ApiScope.ADMIN, tenant="other")}

        listed = (await server.get(LETTERS, headers=other)).json()
        counted = (await server.get(f"{LETTERS}/counts", headers=other)).json()
        read = await server.get(path, headers=other)
        discarded = await server.send("DELETE", path, headers=other)

        assert (listed["count"], counted["messages"]) == (0, 0)
        assert (read.status_code, discarded.status_code) == (404, 404)
        assert (await server.get(path)).json()["body"] == "what is this"
        assert (await server.send("DELETE", path)).status_code == 200
