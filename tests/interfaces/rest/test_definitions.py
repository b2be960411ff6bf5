"""Definitions and dead letters over HTTP: J9, H5."""

from pathlib import Path

from longshore.core.tasks.failures import ErrorCategory
from longshore.core.tasks.states import JobState, TaskState
from longshore.interfaces.rest.app import create_app
from longshore.interfaces.rest.openapi import openapi_document
from longshore.settings.model import ApiSettings
from tests.interfaces.rest.server import a_task, async_test, run_server

FAILS = ("sh", "-c", "echo oh no >&2; exit 3")


def test_the_openapi_document_has_every_state_and_error_category() -> None:
    app = create_app(None, ApiSettings())  # type: ignore[arg-type]

    schemas = openapi_document(app)["components"]["schemas"]

    assert set(schemas["ErrorCategory"]["enum"]) == {member.value for member in ErrorCategory}
    assert set(schemas["JobState"]["enum"]) == {member.value for member in JobState}
    assert set(schemas["TaskState"]["enum"]) == {member.value for member in TaskState}


@async_test
async def test_a_definition_is_stored_in_versions_and_running_jobs_keep_theirs(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        path = "/v1/task-definitions/report"
        definition = {"runner": "command", "options": {"argv": ["true"]}, "timeout": "90s"}

        first = await server.send("PUT", path, definition)
        same = await server.send("PUT", path, first.json())
        second = await server.send("PUT", path, {**definition, "retry": {"maxAttempts": 5}})
        gone = await server.send("DELETE", path)
        again = await server.send("DELETE", path)

        assert [answer.json()["version"] for answer in (first, same, second)] == [1, 1, 2]
        assert first.json()["timeout"] == "1m30s"
        assert (gone.status_code, again.status_code) == (204, 404)
        assert (await server.get(path)).status_code == 404
        assert (await server.get(f"{path}?version=2")).json()["retry"]["maxAttempts"] == 5
        assert (await server.get("/v1/task-definitions")).json() == {"definitions": []}
        assert (await server.get("/v1/task-definitions/command")).json()["version"] == 0


@async_test
async def test_an_invalid_definition_is_refused_with_every_error(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        wrong = await server.send(
            "PUT", "/v1/task-definitions/a", {"runner": "magic", "timeout": "x", "colour": 1}
        )
        other = await server.send(
            "PUT", "/v1/task-definitions/a", {"name": "b", "runner": "command"}
        )
        bad_name = await server.send("PUT", "/v1/task-definitions/a.b", {"runner": "command"})
        no_object = await server.send("PUT", "/v1/task-definitions/a", [1])

        assert wrong.status_code == 422
        assert [error["path"] for error in wrong.json()["errors"]] == [
            "colour",
            "runner",
            "timeout",
        ]
        assert other.status_code == 422
        assert bad_name.json()["errors"][0]["path"] == "name"
        assert no_object.status_code == 422
        assert (await server.get("/v1/task-definitions")).json()["definitions"] == []


@async_test
async def test_a_failed_task_is_listed_read_and_replayed_as_a_dead_letter(tmp_path: Path) -> None:
    async with run_server(tmp_path, with_worker=True) as server:
        job_id = await server.submit(a_task("a", argv=FAILS))
        await server.until(job_id, "failed")

        page = (await server.get("/v1/dead-letters?category=exit-code")).json()
        letter = (await server.get(f"/v1/dead-letters/{page['deadLetters'][0]['id']}")).json()
        none = (await server.get("/v1/dead-letters?category=crash")).json()
        replayed = (
            await server.post("/v1/dead-letters/replay", {"matching": {"jobId": job_id}})
        ).json()
        wrong = await server.post("/v1/dead-letters/replay", {})

        assert (page["count"], none["count"]) == (1, 0)
        assert letter["lastLines"] == [{"stream": "stderr", "text": "oh no"}]
        assert letter["attempts"][0]["exitCode"] == 3
        assert replayed == {
            "replayed": [{"requestId": f"{job_id}_a", "round": 2}],
            "skipped": [],
        }
        assert wrong.status_code == 422
        assert (await server.get("/v1/dead-letters/nothing")).status_code == 404
        await server.until(job_id, "failed")
