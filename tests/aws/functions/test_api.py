"""api: requests of an API Gateway are answered completely, in time, and only with a key."""

import asyncio
import base64
import gzip
import json
import time
from typing import Any

import pytest

from longshore.core.api_keys import ApiScope, WorkLimits
from longshore.errors import UsageError
from longshore.interfaces.lambdas import api_gateway
from tests.aws.functions.gateway_requests import (
    create_api_key,
    request,
    response_body,
    send_request,
)
from tests.aws.functions.installation import TENANT, FunctionInstallation
from tests.unit.services.harness import make_task

AMPLE_S = 15  # more than a busy machine needs, and less than a stream would wait


def test_a_job_is_submitted_and_read_with_a_key_and_refused_without_one(
    installation: FunctionInstallation,
) -> None:
    key = {"x-api-key": create_api_key(installation)}
    job = {"tasks": [make_task("a")]}

    status, problem = send_request(installation, request("POST", "/v1/jobs", job))
    assert (status, problem["type"]) == (401, "urn:longshore:problem:no-key")
    packed = request("POST", "/v1/jobs", **key, **{"content-type": "application/json"})
    packed |= {"body": base64.b64encode(json.dumps(job).encode()).decode()}
    packed |= {"isBase64Encoded": True}
    status, created = send_request(installation, packed)
    assert status in (200, 201, 202)
    status, result = send_request(
        installation, request("GET", f"/v1/jobs/{created['jobId']}", stage="prod", **key)
    )
    assert (status, result["jobId"]) == (200, created["jobId"])
    zipped = installation.invoke(
        "api", request("GET", "/v1/openapi.json", **key, **{"accept-encoding": "gzip"})
    )
    assert zipped["headers"]["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(response_body(zipped)))["info"]["title"] == "Longshore"
    assert len(installation.clients) == 2  # the test's, and one for all requests


def test_a_stream_is_a_long_poll_that_the_next_request_continues(
    installation: FunctionInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_gateway, "_STREAM_IDLE_S", 0.2)
    key = {"x-api-key": create_api_key(installation)}
    job_id = installation.submit(make_task("a"), request_id="streamed").job.id
    installation.deliver_all()
    path = f"/v1/jobs/{job_id}/events/stream"

    installation.invoke("api", request("GET", "/live"))
    begun = time.monotonic()
    first = installation.invoke("api", request("GET", path, **key))
    assert time.monotonic() - begun < AMPLE_S
    pieces = [item for item in response_body(first).decode().split("\n\n") if "data:" in item]
    last = pieces[-1].split("id: ")[1].split("\n")[0]
    installation.run_worker(f"{job_id}_a")
    installation.deliver_all()
    rest = installation.invoke("api", request("GET", path, **key, **{"last-event-id": last}))

    assert first["headers"]["content-type"].startswith("text/event-stream")
    assert "Job Created" in response_body(first).decode()
    assert "event: end" not in response_body(first).decode()
    text = response_body(rest).decode()
    assert "Job Created" not in text
    assert "Task Completed" in text
    assert "event: end" in text


class FakeApp:
    """An app that answers as a test says."""

    def __init__(self, *chunks: bytes, kind: str = "application/json", hangs: bool = False) -> None:
        self._chunks = chunks
        self._kind = kind
        self._hangs = hangs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope = scope
        headers = [(b"content-type", self._kind.encode())]
        if not self._hangs or "event-stream" in self._kind:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in self._chunks:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if self._hangs:
            await asyncio.Event().wait()
        await send({"type": "http.response.body", "body": b""})


def call_app(app: FakeApp, event: Any, timeout_s: float = 5) -> dict[str, Any]:
    return asyncio.run(api_gateway.handle_request(app, event, timeout_s=timeout_s))


def test_a_request_that_takes_too_long_is_answered_with_503() -> None:
    answer = call_app(FakeApp(hangs=True), request("GET", "/"), timeout_s=0.05)

    assert answer["statusCode"] == 503
    assert answer["headers"]["retry-after"] == "1"
    assert json.loads(answer["body"])["requestId"] == "gateway-1"


def test_an_answer_that_is_too_large_is_refused_and_a_stream_ends_before_it_is() -> None:
    piece = b"x" * 2_000_000

    answer = call_app(FakeApp(piece, piece, piece), request("GET", "/"))
    stream = call_app(FakeApp(piece, piece, piece, kind="text/event-stream"), request("GET", "/"))

    assert answer["statusCode"] == 400
    assert "limit" in json.loads(answer["body"])["detail"]
    assert len(response_body(stream)) == 2 * len(piece)
    assert len(json.dumps(stream)) < 6_000_000


def test_bytes_and_encoded_paths_get_through() -> None:
    app = FakeApp(b"\xff\x00", kind="application/octet-stream")
    event = request("GET", "/v1/a%20b?limit=1&x=%2F")

    answer = call_app(app, event)

    assert response_body(answer) == b"\xff\x00"
    assert (app.scope["path"], app.scope["query_string"]) == ("/v1/a b", b"limit=1&x=%2F")


@pytest.mark.parametrize("event", [None, {}, {"version": "1.0", "path": "/"}, []])
def test_an_event_that_is_no_request_is_refused(event: Any) -> None:
    with pytest.raises(UsageError, match=r"payload format 2\.0"):
        call_app(FakeApp(), event)


def test_a_limited_key_starts_only_its_tasks(installation: FunctionInstallation) -> None:
    limits = WorkLimits(definitions=frozenset({"report"}))
    _, text = installation.run(
        lambda all_: all_.api_keys.create(
            TENANT, name="ci", scopes=(ApiScope.SUBMIT,), by="test", limits=limits
        )
    )
    submit = request("POST", "/v1/jobs", {"tasks": [make_task("a")]}, **{"x-api-key": text})

    status, problem = send_request(installation, submit)

    assert (status, problem["type"]) == (403, "urn:longshore:problem:not-allowed")
    assert "may only start tasks of the definitions report" in problem["detail"]
