"""The whole OpenAPI document, called with whatever fits it and whatever does not."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi import checks

from tests.interfaces.rest.door import Door, a_task, opened

EXAMPLES = 25
CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
MANY = 1_000_000


class Served:
    """A server in a thread of its own: whoever calls it here blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self.address = self.key = self.job_id = ""

    def __enter__(self) -> "Served":
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve()))
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        try:
            async with opened(self._folder, requests_per_second=MANY, burst=MANY) as door:
                await self._fill(door)
                self._ready.set()
                await self._end.wait()
        finally:
            self._ready.set()

    async def _fill(self, door: Door) -> None:
        self.address, self.key = door.address, door.keys["all"]
        self.job_id = await door.submit(a_task("a"), a_task("b", "a"))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture(scope="module")
def api(served: Served) -> Any:
    headers = {"x-api-key": served.key}
    return schemathesis.openapi.from_url(f"{served.address}/v1/openapi.json", headers=headers)


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_request_gets_a_server_error_or_an_answer_that_is_not_documented(
    api: Any, served: Served, mode: GenerationMode
) -> None:
    called = 0
    for found in api.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def call(case: schemathesis.Case) -> None:
            nonlocal called
            called += 1
            case.call_and_validate(headers={"x-api-key": served.key}, checks=CHECKS)

        try:
            call()
        except Unsatisfiable:
            continue  # nothing of it can be wrong
    assert called > EXAMPLES


def test_the_document_describes_every_route_with_words(served: Served) -> None:
    document = httpx.get(
        f"{served.address}/v1/openapi.json", headers={"x-api-key": served.key}
    ).json()

    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert operation["description"], (method, path)
            if path != "/live":
                assert operation["security"], (method, path)
