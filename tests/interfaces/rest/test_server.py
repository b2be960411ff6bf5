"""The door itself: nobody without a key, no other host, no other page, no more than is allowed."""

from pathlib import Path

import httpx
import pytest

from longshore.core.api_keys import ApiScope
from longshore.errors import BackendUnavailable
from tests.interfaces.rest.server import a_task, async_test, run_server


@async_test
async def test_nothing_but_liveness_is_open_without_a_key(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        routes = (await door.get("/v1/openapi.json")).json()["paths"]
        for path, methods in routes.items():
            for method in methods:
                bare = path.replace("{", "").replace("}", "")
                answer = await door.client.request(method, bare)
                expected = 200 if path == "/live" else 401
                assert answer.status_code == expected, (method, path)
        assert (await door.client.get("/v1/openapi.json")).status_code == 401
        assert len(routes) > 10


@pytest.mark.parametrize(
    "headers",
    [
        {"x-api-key": "lsk_nonsense"},
        {"x-api-key": "x" * 10_000},
        {"x-api-key": "schlüssel".encode()},
        {"authorization": "Basic YTpi"},
        {"authorization": "Bearer x"},
    ],
)
@async_test
async def test_a_key_that_nobody_knows_opens_nothing(
    headers: dict[str, str], tmp_path: Path
) -> None:
    async with run_server(tmp_path) as door:
        answer = await door.client.get("/v1/jobs", headers=headers)

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["type"] == "urn:longshore:problem:no-key"


@async_test
async def test_a_key_allows_what_its_scopes_say(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        job_id = await door.submit(a_task("a"))
        wanted = {
            ApiScope.READ: ("GET", f"/v1/jobs/{job_id}"),
            ApiScope.SUBMIT: ("POST", f"/v1/jobs/{job_id}/tasks"),
            ApiScope.OPERATE: ("POST", f"/v1/jobs/{job_id}/cancel"),
            ApiScope.ADMIN: ("GET", "/v1/keys"),
        }
        for given in ApiScope:
            key = {"authorization": f"Bearer {await door.key(given)}"}
            for needed, (method, path) in wanted.items():
                answer = await door.client.request(method, path, headers=key)
                may = given in (needed, ApiScope.ADMIN)
                assert (answer.status_code != 403) == may, (given, needed)


@async_test
async def test_a_revoked_key_opens_nothing_from_that_moment(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        made = (await door.post("/v1/keys", {"name": "ci", "scopes": ["read"]})).json()
        key = {"x-api-key": made["key"]}
        assert (await door.client.get("/v1/jobs", headers=key)).status_code == 200

        revoked = await door.send("DELETE", f"/v1/keys/{made['id']}")

        assert revoked.json()["revokedAt"] is not None
        assert (await door.client.get("/v1/jobs", headers=key)).status_code == 401
        again = await door.send("DELETE", f"/v1/keys/{made['id']}")
        assert again.json() == revoked.json()
        assert (await door.send("DELETE", "/v1/keys/key-x")).status_code == 404


@async_test
async def test_a_key_is_shown_once_and_kept_only_as_a_hash(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        made = (await door.post("/v1/keys", {"name": "ci", "scopes": ["read"]})).json()

        listed = (await door.get("/v1/keys")).text
        events = await door.services.backend.events.history("acme", "SYSTEM#keys")

        assert made["key"] not in listed
        assert made["id"] in listed
        told = [(event.body.by, event.body.action, event.body.subject) for event in events]
        assert told[-1] == ("ann", "key.created", made["id"])
        for file in tmp_path.rglob("*"):
            if file.is_file():
                assert made["key"].encode() not in file.read_bytes()


@async_test
async def test_a_key_that_is_used_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with run_server(tmp_path, requests_per_second=1, burst=3) as door:
        busy, other = await door.key(ApiScope.READ), await door.key(ApiScope.READ)

        answers = [await door.client.get("/v1/jobs", headers={"x-api-key": busy}) for _ in range(5)]
        calm = await door.client.get("/v1/jobs", headers={"x-api-key": other})

        assert [answer.status_code for answer in answers][:3] == [200] * 3
        assert answers[-1].status_code == 429
        assert answers[-1].headers["retry-after"] == "1"
        assert calm.status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:80"}, 421),
        ({"host": "["}, 421),
        ({"host": "LOCALHOST:1"}, 200),
        ({"host": "[::1]:1"}, 200),
        ({"origin": "http://evil.example"}, 421),
        ({"origin": "null"}, 421),
        ({"origin": "http://localhost:3000"}, 200),
    ],
)
@async_test
async def test_only_names_that_are_ours_are_answered(
    headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as door:
        answer = await door.get("/v1/jobs", headers=headers)

        assert answer.status_code == status
        if status == 421:
            assert answer.headers["content-type"] == "application/problem+json"


@async_test
async def test_a_request_has_the_id_it_was_given_or_a_new_one(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        given = await door.get("/v1/jobs", headers={"x-request-id": "abc-1"})
        wrong = await door.get("/v1/jobs", headers={"x-request-id": "a\tb" * 100})

        assert given.headers["x-request-id"] == "abc-1"
        assert len(wrong.headers["x-request-id"]) == 16


@async_test
async def test_what_is_out_of_reach_is_a_503_and_what_breaks_a_500_that_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_server(tmp_path) as door:
        for error, status in ((BackendUnavailable("x"), 503), (RuntimeError("secret"), 500)):

            async def breaks(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            monkeypatch.setattr(door.services.backend.ledger, "list_jobs", breaks)
            answer = await door.get("/v1/jobs")

            assert answer.status_code == status
            assert "secret" not in answer.text
            assert answer.json()["requestId"] == answer.headers["x-request-id"]


@async_test
async def test_long_answers_are_packed_for_those_who_take_it(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        await door.submit(*(a_task(f"t{number}") for number in range(50)))
        job_id = (await door.get("/v1/jobs")).json()["jobs"][0]["jobId"]

        packed = await door.get(f"/v1/jobs/{job_id}", headers={"accept-encoding": "gzip"})
        plain = await door.get(f"/v1/jobs/{job_id}", headers={"accept-encoding": "identity"})

        assert packed.headers["content-encoding"] == "gzip"
        assert packed.json() == plain.json()
        assert "content-encoding" not in plain.headers


@async_test
async def test_a_wrong_path_or_method_is_a_problem_too(tmp_path: Path) -> None:
    async with run_server(tmp_path) as door:
        answers: list[httpx.Response] = [
            await door.get("/v1/nothing"),
            await door.send("PATCH", "/v1/jobs"),
            await door.get("/v1/jobs/"),
            await door.get("/v1/jobs/job-none"),
        ]

        assert [answer.status_code for answer in answers] == [404, 405, 404, 404]
        assert {answer.headers["content-type"] for answer in answers} == {
            "application/problem+json"
        }
