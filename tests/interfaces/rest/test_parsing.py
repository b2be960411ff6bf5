"""Untrusted bodies are bounded in size, depth and numbers, and never cause a 500."""

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from longshore.interfaces.document_files import UnreadableDocument, _unique_object, parse_json
from longshore.interfaces.rest import requests
from tests.interfaces.rest.server import async_test, run_server

KIB = 1024
DEEP = b'{"tasks":' + b"[" * 50_000 + b"]" * 50_000 + b"}"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "Expecting value"),
        (b"{", 400, "not a JSON document"),
        (b'{"tasks": [NaN]}', 400, "NaN is not JSON"),
        (b'{"tasks": [-Infinity]}', 400, "Infinity is not JSON"),
        (b'{"tasks": [], "tasks": []}', 400, "'tasks' occurs twice"),
        (b'{"tasks": [' + b"9" * 5_000 + b"]}", 400, "more than 400 digits"),
        (b'{"tasks": [1e999999]}', 422, ""),
        (DEEP, 400, "nested too deeply"),
        (b'{"name": "\\ud800", "tasks": []}', 400, "surrogate"),
        (b'{"name": "\xff"}', 400, "not a JSON document"),
        (b'{"name": "\\u0000", "tasks": []}', 422, ""),
        (b"[" + b"0," * 600 * KIB + b"0]", 413, "more than 1048576 bytes"),
        (b"null", 422, ""),
        (b'"text"', 422, ""),
        (b'{"tasks": {"a": 1}}', 422, ""),
        (b'{"tasks": [{"taskId": "a", "name": "command", "input": "\\u0000"}]}', 201, ""),
    ],
    ids=lambda value: value[:30] if isinstance(value, bytes) else None,
)
@async_test
async def test_an_invalid_body_is_refused_with_the_reason(
    body: bytes, status: int, words: str, tmp_path: Path
) -> None:
    async with run_server(tmp_path, body_bytes=KIB * KIB) as server:
        for path in ("/v1/jobs", "/v1/jobs/job-x/tasks"):
            answer = await server.post(path, body)
            expected = 404 if path.endswith("/tasks") and status in (201, 422) else status
            assert answer.status_code == expected, answer.text
            if words:
                assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("item", "status"),
    [(b"{}", 413), (b"0", 413), (b'"[,"', 413), (b'"' + b",[{" * 10_000 + b'\\""', 422)],
    ids=("objects", "numbers", "texts", "long texts"),
)
@async_test
async def test_a_body_with_too_many_values_is_refused(
    item: bytes, status: int, tmp_path: Path
) -> None:
    count = 600_000 if status == 413 else 60
    async with run_server(tmp_path, body_bytes=4 * KIB * KIB) as server:
        answer = await server.post("/v1/jobs", b'{"x":[' + b",".join([item] * count) + b"]}")

        assert answer.status_code == status, answer.text
        assert status != 413 or "more than 500,000 values" in answer.json()["detail"]


@async_test
@pytest.mark.parametrize("character", ["\N{WINKING FACE}".encode(), rb"\ud83d\ude09"])
async def test_a_body_that_is_not_ascii_has_half_as_many_bytes(
    character: bytes, tmp_path: Path
) -> None:
    async with run_server(tmp_path, body_bytes=64 * KIB) as server:
        for size, status in ((20 * KIB, 422), (40 * KIB, 413)):
            plain = await server.post("/v1/jobs", b'{"x": "%b"}' % (b"x" * size))
            answer = await server.post("/v1/jobs", b'{"x": "%b%b"}' % (b"x" * size, character))

            assert plain.status_code == 422
            assert answer.status_code == status
            assert status != 413 or "32,768 bytes and is not all ASCII" in answer.json()["detail"]


@async_test
async def test_a_long_body_that_describes_no_job_is_refused(tmp_path: Path) -> None:
    options = b'{"runner": "command", "options": {"argv": ["%b"]}}' % (b"x" * 5 * KIB * KIB)
    async with run_server(tmp_path) as server:
        answer = await server.send("PUT", "/v1/task-definitions/x", options)

    assert answer.status_code == 413
    assert "more than 4194304 bytes" in answer.json()["detail"]


@async_test
async def test_a_long_body_is_parsed_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def parse(text: str) -> Any:
        threads.append(threading.current_thread())
        return parse_json(text)

    monkeypatch.setattr(requests, "parse_json", parse)
    async with run_server(tmp_path, body_bytes=KIB * KIB) as server:
        for size in (10, 300 * KIB):
            answer = await server.post("/v1/jobs", b'{"x": "%b"}' % (b"x" * size))
            assert answer.status_code == 422

    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


@async_test
async def test_the_bodies_of_all_requests_together_are_bounded(tmp_path: Path) -> None:
    body = b" " * (KIB * KIB - 2) + b"{}"
    arrived, go = asyncio.Semaphore(0), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:-2]
        arrived.release()
        await go.wait()
        yield body[-2:]

    async with run_server(tmp_path, body_bytes=KIB * KIB) as server:
        slow = [asyncio.ensure_future(server.post("/v1/jobs", content=slowly())) for _ in range(2)]
        for _ in slow:
            await arrived.acquire()
        refused = await server.post("/v1/jobs", body)
        go.set()
        statuses = [(await answer).status_code for answer in slow]
        later = await server.post("/v1/jobs", body)

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["type"] == "urn:longshore:problem:busy"
    assert [*statuses, later.status_code] == [422, 422, 422]


@async_test
async def test_a_compressed_body_is_refused(tmp_path: Path) -> None:
    async with run_server(tmp_path, body_bytes=KIB * KIB) as server:
        packed = gzip.compress(b'{"tasks": []}')

        answers = [
            await server.post("/v1/jobs", packed, headers={"content-encoding": encoding})
            for encoding in ("gzip", "br")
        ]

        assert [answer.status_code for answer in answers] == [415, 415]
        assert answers[0].json()["type"] == "urn:longshore:problem:encoding"
        assert answers[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["*"]])
@async_test
async def test_a_request_whose_length_is_ambiguous_is_refused_and_its_connection_closed(
    hosts: list[str], tmp_path: Path
) -> None:
    async with run_server(tmp_path, hosts=hosts) as server:
        reader, writer = await asyncio.open_connection(*server.address[7:].split(":"))
        writer.write(
            b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2\r\n"
            b"Transfer-Encoding: chunked\r\nx-api-key: %b\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
            % server.keys["all"].encode()
        )

        answer = await reader.read()  # to the end of the connection

        writer.close()
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"both Content-Length and Transfer-Encoding" in answer


@async_test
async def test_a_body_of_another_content_type_is_refused(tmp_path: Path) -> None:
    async with run_server(tmp_path) as server:
        answer = await server.post("/v1/jobs", b"a=b", headers={"content-type": "text/plain"})

        assert (answer.status_code, answer.json()["type"]) == (
            415,
            "urn:longshore:problem:media-type",
        )


@async_test
async def test_a_chunked_body_is_limited_too(tmp_path: Path) -> None:
    async with run_server(tmp_path, body_bytes=KIB) as server:

        async def pieces():  # type: ignore[no-untyped-def]
            for _ in range(100):
                yield b" " * 100

        answer = await server.client.post(
            "/v1/jobs", content=pieces(), headers={"x-api-key": server.keys["all"]}
        )

        assert isinstance(answer, httpx2.Response)
        assert answer.status_code == 413
        assert json.loads(answer.content)["type"] == "urn:longshore:problem:too-large"


def test_the_search_for_a_repeated_name_is_linear() -> None:
    class Name(str):
        comparisons = 0

        def __eq__(self, other: object) -> bool:
            Name.comparisons += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    pairs = [(Name(f"name-{number}"), number) for number in range(2_000)]

    with pytest.raises(UnreadableDocument, match="'name-1999' occurs twice"):
        _unique_object([*pairs, (Name("name-1999"), 0)])
    assert Name.comparisons < 4 * len(pairs)
