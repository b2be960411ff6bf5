"""Calls every route of the OpenAPI document with whatever fits it and whatever does not.

A test does a little of it; ``python -m tests.interfaces.rest.schema_run 500`` does it at length.
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

from longshore.settings.agent import AgentSettings
from tests.interfaces.dead_store import bury
from tests.interfaces.rest.door import Door, a_task, opened

CHECKS: list[CheckFunction] = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
MANY = 1_000_000
A_DAY = AgentSettings(usd_per_day=1, tokens_per_day=1, minutes_per_day=1)


class Served:
    """A server in a thread of its own: whoever calls it here blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self.address = self.key = ""
        # Ids of things that are there, by the names of path parameters: to look at, whose streams
        # come to an end, and to change.
        self.to_see: dict[str, str] = {}
        self.to_change: dict[str, str] = {}

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
            rate = {"requests_per_second": MANY, "burst": MANY}
            async with opened(self._folder, others={"agent": A_DAY}, **rate) as door:
                await self._fill(door)
                self._ready.set()
                await self._end.wait()
        finally:
            self._ready.set()

    async def _fill(self, door: Door) -> None:
        self.address, self.key = door.address, door.keys["all"]
        over = await door.submit(a_task("a"), a_task("b", "a"), a_task("c"))
        await door.post(f"/v1/jobs/{over}/cancel")
        tasks = [a_task("a"), a_task("b", "a"), a_task("c")]
        limited = {"tasks": tasks, "budget": {"usd": 1, "tokens": 1, "minutes": 1}}
        under_way = (await door.post("/v1/jobs", limited)).json()["jobId"]
        await door.send("PUT", "/v1/task-definitions/known", {"runner": "command"})
        await door.post("/v1/health-check")
        await bury(door.services, "odd", "one", "two")
        letters = (await door.get("/v1/dead-letters")).json()["deadLetters"]
        spare = (await door.post("/v1/keys", {"name": "spare", "scopes": ["read"]})).json()
        both = {"task_id": "a", "name": "known", "key_id": spare["id"]}
        self.to_see = {**both, "job_id": over, "letter_id": letters[0]["id"]}
        self.to_change = {**both, "job_id": under_way, "letter_id": letters[1]["id"]}


def called(
    served: Served,
    mode: GenerationMode,
    examples: int,
    *,
    of_what_is_there: bool,
    repeatable: bool = True,
) -> Counter[int]:
    """Call each route so often; how many answers had which status.

    Args:
        of_what_is_there: Paths name things that exist, so that more than a 404 comes back.
        repeatable: The same requests each time.

    Raises:
        FailureGroup: an answer is a server error, or not documented.
    """
    answers: Counter[int] = Counter()
    headers = {"x-api-key": served.key}
    api: Any = schemathesis.openapi.from_url(f"{served.address}/v1/openapi.json", headers=headers)
    for found in api.get_all_operations():

        @settings(
            max_examples=examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=repeatable,
            database=None,
        )
        @given(case=found.ok().as_strategy(generation_mode=mode))
        def call(case: schemathesis.Case) -> None:
            if of_what_is_there:
                known = served.to_see if case.method == "GET" else served.to_change
                for name in known.keys() & case.path_parameters.keys():
                    case.path_parameters[name] = known[name]
            answer = case.call_and_validate(headers=headers, checks=CHECKS)
            answers[answer.status_code] += 1

        try:
            call()
        except Unsatisfiable:
            continue  # nothing of it can be wrong
    return answers


def main() -> None:
    examples = int(sys.argv[1])
    for mode, there in product(GenerationMode, (False, True)):
        # Each on its own store: what one has made must not slow the next.
        with tempfile.TemporaryDirectory() as folder, Served(Path(folder)) as served:
            answers = called(served, mode, examples, of_what_is_there=there, repeatable=False)
        what = "what is there" if there else "anything"
        counts = ", ".join(f"{status}: {number}" for status, number in sorted(answers.items()))
        sys.stdout.write(f"{mode.value} of {what}: {answers.total()} requests ({counts})\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
