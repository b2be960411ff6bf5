"""Calls every route of the OpenAPI document with valid and with invalid values.

A test does a little of it; ``python -m tests.interfaces.rest.schema_fuzz 500`` does it at length,
and fails if a request holds the event loop for long (CPU time of its thread, see ``body_fuzz``).
"""

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.specs.openapi import checks

from longshore.core.ids import task_id_of
from longshore.core.tasks.failures import ErrorCategory
from longshore.settings.model import AgentSettings
from tests.interfaces.dead_store import fail
from tests.interfaces.rest.body_fuzz import LIMIT_S, LoopMeter
from tests.interfaces.rest.server import RestServer, a_task, run_server

CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
MANY = 1_000_000
DAILY_BUDGET = AgentSettings(usd_per_day=1, tokens_per_day=1, minutes_per_day=1)


class FuzzedServer:
    """A server in its own thread, because the calls of these tests block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self.address = self.key = ""
        # Ids of existing items by the names of path parameters: those to read, whose streams end,
        # and those to change.
        self.ids_to_read: dict[str, str] = {}
        self.ids_to_change: dict[str, str] = {}

    def __enter__(self) -> "FuzzedServer":
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
            rate = {"requests_per_second": MANY, "burst": MANY}
            async with run_server(self._folder, others={"agent": DAILY_BUDGET}, **rate) as server:
                await self._fill(server)
                self.meter = LoopMeter(with_collections=False)
                self._ready.set()
                await self._end.wait()
        finally:
            self._ready.set()

    async def _fill(self, server: RestServer) -> None:
        self.address, self.key = server.address, server.keys["all"]
        over = await server.submit(a_task("a"), a_task("b", "a"), a_task("c"))
        await server.post(f"/v1/jobs/{over}/cancel")
        tasks = [a_task("a"), a_task("b", "a"), a_task("c")]
        limited = {"tasks": tasks, "budget": {"usd": 1, "tokens": 1, "minutes": 1}}
        under_way = (await server.post("/v1/jobs", limited)).json()["jobId"]
        await server.send("PUT", "/v1/task-definitions/known", {"runner": "command"})
        await server.post("/v1/health-check")
        failing = await server.submit(a_task("a"), a_task("b"))
        for key in ("a", "b"):
            task_id = task_id_of(failing, key)
            await fail(server.services, task_id, ErrorCategory.AUTH, "no entry")
        letters = (await server.get("/v1/dead-letters")).json()["deadLetters"]
        spare = (await server.post("/v1/keys", {"name": "spare", "scopes": ["read"]})).json()
        both = {"task_id": "a", "name": "known", "key_id": spare["id"]}
        self.ids_to_read = {**both, "job_id": over, "letter_id": letters[0]["id"]}
        self.ids_to_change = {**both, "job_id": under_way, "letter_id": letters[1]["id"]}


def fuzz_routes(
    server: FuzzedServer,
    mode: GenerationMode,
    examples: int,
    *,
    existing_ids: bool,
    repeatable: bool = True,
) -> Counter[int]:
    """Call each route with that many examples and count the answers by status.

    Args:
        existing_ids: Paths name items that exist, so that answers other than 404 occur.
        repeatable: The same requests each time.

    Raises:
        FailureGroup: an answer is a server error, or not documented.
    """
    answers: Counter[int] = Counter()
    headers = {"x-api-key": server.key}
    api: Any = schemathesis.openapi.from_url(f"{server.address}/v1/openapi.json", headers=headers)
    for operation in api.get_all_operations():

        @settings(
            max_examples=examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=repeatable,
            database=None,
        )
        @given(case=operation.ok().as_strategy(generation_mode=mode))
        def call(case: schemathesis.Case) -> None:
            if existing_ids:
                ids = server.ids_to_read if case.method == "GET" else server.ids_to_change
                for name in ids.keys() & case.path_parameters.keys():
                    case.path_parameters[name] = ids[name]
            answer = case.call_and_validate(headers=headers, checks=CHECKS)
            answers[answer.status_code] += 1

        try:
            call()
        except Unsatisfiable:
            continue  # no input of this route can be invalid
    return answers


def main() -> None:
    examples = int(sys.argv[1])
    for mode, there in product(GenerationMode, (False, True)):
        # Each run has its own store, so that rows of one run do not slow down the next.
        with tempfile.TemporaryDirectory() as folder, FuzzedServer(Path(folder)) as served:
            answers = fuzz_routes(served, mode, examples, existing_ids=there, repeatable=False)
        what = "what is there" if there else "anything"
        counts = ", ".join(f"{status}: {number}" for status, number in sorted(answers.items()))
        longest = f"loop held for {1000 * served.meter.longest_s:.0f} ms"
        sys.stdout.write(
            f"{mode.value} of {what}: {answers.total()} requests ({counts}), {longest}\n"
        )
        sys.stdout.flush()
        if served.meter.longest_s > LIMIT_S:
            sys.exit(f"more than {1000 * LIMIT_S:.0f} ms: {served.meter.what}")


if __name__ == "__main__":
    main()
