"""The server refuses requests without a key, for another host or page, or above the limit."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx2
import pytest

from longshore.core.api_keys import ApiScope, hash_key
from longshore.errors import BackendUnavailable
from longshore.interfaces.rest import auth
from tests.interfaces.rest.server import a_task, async_test, run_server


@async_test
async def test_every_route_except_liveness_needs_a_key(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        routes = (await server.get("/v1/openapi.json")).json()["paths"]
        for path, methods in routes.items():
            for method in methods:
                bare = path.replace("{", "").replace("}", "")
                answer = await server.client.request(method, bare)
                expected = 200 if path == "/live" else 401
                assert answer.status_code == expected, (method, path)
        assert (await server.client.get("/v1/openapi.json")).status_code == 401
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
async def test_an_unknown_key_is_refused(headers: dict[str, str], tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.client.get("/v1/jobs", headers=headers)

        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["type"] == "urn:longshore:problem:no-key"


@async_test
async def test_a_key_allows_what_its_scopes_say(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        job_id = await server.submit(a_task("a"))
        routes = {
            ApiScope.READ: ("GET", f"/v1/jobs/{job_id}"),
            ApiScope.SUBMIT: ("POST", f"/v1/jobs/{job_id}/tasks"),
            ApiScope.OPERATE: ("POST", f"/v1/jobs/{job_id}/cancel"),
            ApiScope.ADMIN: ("GET", "/v1/keys"),
        }
        for scope in ApiScope:
            key = {"authorization": f"Bearer {await server.key(scope)}"}
            for needed, (method, path) in routes.items():
                answer = await server.client.request(method, path, headers=key)
                may = scope in (needed, ApiScope.ADMIN)
                assert (answer.status_code != 403) == may, (scope, needed)


@async_test
async def test_a_revoked_key_is_refused_at_once(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        created = (await server.post("/v1/keys", {"name": "ci", "scopes": ["read"]})).json()
        key = {"x-api-key": created["key"]}
        assert (await server.client.get("/v1/jobs", headers=key)).status_code == 200

        revoked = await server.send("DELETE", f"/v1/keys/{created['id']}")

        assert revoked.json()["revokedAt"] is not None
        assert (await server.client.get("/v1/jobs", headers=key)).status_code == 401
        again = await server.send("DELETE", f"/v1/keys/{created['id']}")
        assert again.json() == revoked.json()
        assert (await server.send("DELETE", "/v1/keys/key-x")).status_code == 404


@async_test
async def test_an_expired_key_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        request = {"name": "ci", "scopes": ["read"], "expires": "30d"}
        created = (await server.post("/v1/keys", request)).json()
        key = {"x-api-key": created["key"]}
        valid = await server.client.get("/v1/jobs", headers=key)
        (record,) = [
            item
            for item in await server.services.backend.keys.list("acme")
            if item.id == created["id"]
        ]
        old = replace(record, id="key-old", hash=hash_key("lsk_old"), expires_at=record.created_at)
        await server.services.backend.keys.add(old)
        expired = await server.client.get("/v1/jobs", headers={"x-api-key": "lsk_old"})
        wrong = [
            await server.post("/v1/keys", {**request, "expires": text})
            for text in ("0s", "soon", "99999d")
        ]

    assert record.expires_at == record.created_at + timedelta(days=30)
    assert (valid.status_code, expired.status_code) == (200, 401)
    assert "expired at" in expired.json()["detail"]
    assert {answer.status_code for answer in wrong} == {400}


@pytest.mark.parametrize("path", ["events/stream", "tasks/a/output/stream"])
@pytest.mark.parametrize("ends", ["revoked", "expired"])
@async_test
async def test_a_stream_ends_when_its_key_is_no_longer_valid(
    path: str, ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "_KEY_CHECKED_EVERY_S", 0.05)
    async with run_server(tmp_path) as server:
        job_id = await server.submit(a_task("a"))
        request = {"name": "ci", "scopes": ["read"]}
        request |= {"expires": "2s"} if ends == "expired" else {}
        created = (await server.post("/v1/keys", request)).json()
        key = {"x-api-key": created["key"]}

        url = f"/v1/jobs/{job_id}/{path}"
        async with server.client.stream("GET", url, headers=key) as answer:
            assert answer.status_code == 200
            if ends == "revoked":
                await server.send("DELETE", f"/v1/keys/{created['id']}")
            shown = [line async for line in answer.aiter_lines()]

    assert "event: end" not in shown


@async_test
async def test_a_key_is_shown_once_and_stored_only_as_a_hash(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        created = (await server.post("/v1/keys", {"name": "ci", "scopes": ["read"]})).json()

        listed = (await server.get("/v1/keys")).text
        events = await server.services.backend.events.history("acme", "SYSTEM#keys")

        assert created["key"] not in listed
        assert created["id"] in listed
        actions = [(event.body.by, event.body.action, event.body.subject) for event in events]
        assert actions[-1] == ("ann", "key.created", created["id"])
        for file in tmp_path.rglob("*"):
            if file.is_file():
                assert created["key"].encode() not in file.read_bytes()


@async_test
async def test_a_key_above_its_rate_limit_gets_a_429_with_retry_after(tmp_path: Path) -> None:
    async with run_server(tmp_path, requests_per_second=1, burst=3) as server:
        busy, other = await server.key(ApiScope.READ), await server.key(ApiScope.READ)

        answers = [
            await server.client.get("/v1/jobs", headers={"x-api-key": busy}) for _ in range(5)
        ]
        calm = await server.client.get("/v1/jobs", headers={"x-api-key": other})

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
async def test_only_requests_for_an_allowed_host_and_origin_are_answered(
    headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.get("/v1/jobs", headers=headers)

        assert answer.status_code == status
        if status == 421:
            assert answer.headers["content-type"] == "application/problem+json"


@async_test
async def test_a_request_keeps_a_valid_request_id_and_otherwise_gets_a_new_one(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        valid = await server.get("/v1/jobs", headers={"x-request-id": "abc-1"})
        wrong = await server.get("/v1/jobs", headers={"x-request-id": "a\tb" * 100})

        assert valid.headers["x-request-id"] == "abc-1"
        assert len(wrong.headers["x-request-id"]) == 16


@async_test
async def test_an_unavailable_backend_is_a_503_and_another_error_a_500_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with run_server(tmp_path) as server:
        for error, status in ((BackendUnavailable("x"), 503), (RuntimeError("secret"), 500)):

            async def breaks(*_: object, error: Exception = error, **__: object) -> None:
                raise error

            monkeypatch.setattr(server.services.backend.ledger, "list_jobs", breaks)
            answer = await server.get("/v1/jobs")

            assert answer.status_code == status
            assert "secret" not in answer.text
            assert answer.json()["requestId"] == answer.headers["x-request-id"]


@async_test
async def test_long_answers_are_compressed_for_clients_that_accept_it(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        await server.submit(*(a_task(f"t{number}") for number in range(50)))
        job_id = (await server.get("/v1/jobs")).json()["jobs"][0]["jobId"]

        packed = await server.get(f"/v1/jobs/{job_id}", headers={"accept-encoding": "gzip"})
        plain = await server.get(f"/v1/jobs/{job_id}", headers={"accept-encoding": "identity"})

        assert packed.headers["content-encoding"] == "gzip"
        assert packed.json() == plain.json()
        assert "content-encoding" not in plain.headers


@async_test
async def test_an_unknown_path_or_method_is_answered_with_a_problem_document(
    tmp_path: Path,
) -> None:
    async with run_server(tmp_path) as server:
        answers: list[httpx2.Response] = [
            await server.get("/v1/nothing"),
            await server.send("PATCH", "/v1/jobs"),
            await server.get("/v1/jobs/"),
            await server.get("/v1/jobs/job-none"),
        ]

        assert [answer.status_code for answer in answers] == [404, 405, 404, 404]
        assert {answer.headers["content-type"] for answer in answers} == {
            "application/problem+json"
        }


def entries_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """The access log: the fields of each entry."""
    names = ("key", "tenant", "method", "route", "path", "status", "elapsed_ms", "bytes")
    return [
        {name: vars(record)[name] for name in names}
        for record in caplog.records
        if record.message == "api.request"
    ]


@async_test
async def test_the_access_log_has_one_entry_for_each_request_and_never_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "longshore")
    async with run_server(tmp_path, access_log=True) as server:
        job_id = await server.submit(a_task("a"))
        caplog.clear()
        answer = await server.get(f"/v1/jobs/{job_id}/tasks", params={"status": "lsk_query"})
        unknown = await server.client.get("/v1/jobs", headers={"x-api-key": "lsk_unknown"})
        nothing = await server.get("/v1/%1b%5d0;title%07%0a")
        foreign = await server.get("/v1/jobs", headers={"host": "evil.example"})
        entries = entries_of(caplog)
        (key,) = await server.services.api_keys.list("acme")

    assert [entry["status"] for entry in entries] == [422, 401, 404, 421]
    assert [entry["key"] for entry in entries] == [key.id, None, None, None]
    assert [entry["tenant"] for entry in entries] == ["acme", None, None, None]
    assert [entry["route"] for entry in entries][:2] == ["/jobs/{job_id}/tasks", "/jobs"]
    assert entries[0]["path"] == f"/v1/jobs/{job_id}/tasks"
    assert [entry["bytes"] for entry in entries] == [
        len(response.content) for response in (answer, unknown, nothing, foreign)
    ]
    assert all(isinstance(entry["elapsed_ms"], int) for entry in entries)
    logged = str([vars(record) for record in caplog.records])
    assert not [text for text in ("lsk_", server.keys["all"]) if text in str(entries)]
    assert server.keys["all"] not in logged
    assert all(str(entry["path"]).isprintable() for entry in entries)


@async_test
async def test_requests_are_not_logged_by_default(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "longshore")
    async with run_server(tmp_path) as server:
        await server.get("/v1/jobs")

    assert entries_of(caplog) == []


@async_test
async def test_unknown_keys_of_an_address_get_a_429_with_retry_after(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        assert (await server.get("/v1/jobs")).status_code == 200
        answers = [
            await server.client.get("/v1/jobs", headers={"x-api-key": f"lsk_{number}"})
            for number in range(60)
        ]
        valid = await server.get("/v1/jobs")
        without = await server.client.get("/v1/jobs")

    refused = [answer for answer in answers if answer.status_code == 429]
    assert [answer.status_code for answer in answers[:20]] == [401] * 20
    assert refused != []
    assert {answer.headers["retry-after"] for answer in refused} == {"1"}
    assert (valid.status_code, without.status_code) == (200, 401)
