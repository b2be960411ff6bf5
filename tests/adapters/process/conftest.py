"""Real children: how to start one and how to see what became of it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.process.attempt import ProcessAttempt
from longshore.adapters.process.runner import ProcessRunner
from longshore.adapters.system.clock import SystemClock
from longshore.core.definition import BUILTIN
from longshore.ports.output import Stream
from longshore.ports.runner import Ending, Printed, Report, WorkOrder

LIMIT_S = 30
NO_GRACE = timedelta(0)
CHILDREN = "tests.adapters.process.children"
ROOT = str(Path(__file__).parents[3])


def scenario(play: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that hangs fails."""

    @wraps(play)
    def test(**given: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                try:
                    await play(**given)
                finally:
                    if isinstance(runner := given.get("runner"), ProcessRunner):
                        await runner.close()

        asyncio.run(bounded())

    return test


def a_command(*argv: str, **fields: Any) -> WorkOrder:
    return _order("command", {"argv": list(argv)}, fields)


def a_script(text: str, **fields: Any) -> WorkOrder:
    return a_command("sh", "-c", text, **fields)


def a_call(name: str, /, *args: Any, **fields: Any) -> WorkOrder:
    """A function of ``children``."""
    given = {"function": f"{CHILDREN}:{name}", "args": list(args), "path": [ROOT]}
    return _order("python", given, fields)


def _order(runner: str, given: dict[str, Any], fields: dict[str, Any]) -> WorkOrder:
    definition = replace(BUILTIN[runner], **fields.pop("definition", {}))
    wanted = {
        "task_id": "job-a_a",
        "job_id": "job-a",
        "key": "a",
        "tenant": "acme",
        "attempt": 1,
        "fence": 1,
        "definition": definition,
        "timeout": timedelta(minutes=1),
        "input": {**given, **fields.pop("input", {})},
        **fields,
    }
    return WorkOrder(**wanted)


@pytest.fixture
def runner(tmp_path: Path) -> ProcessRunner:
    return ProcessRunner(tmp_path, {"PATH": "/usr/bin:/bin"}, SystemClock())


async def reports_of(attempt: ProcessAttempt) -> list[Report]:
    return [report async for report in attempt.reports()]


async def run(runner: ProcessRunner, order: WorkOrder) -> tuple[Ending, list[Report]]:
    """Run a child to its end."""
    attempt = await runner.start(order)
    try:
        reports = await reports_of(attempt)
        return await attempt.ending(), reports
    finally:
        await attempt.stop(grace=NO_GRACE)
        await attempt.close()


def printed(reports: list[Report], stream: Stream = Stream.STDOUT) -> str:
    pieces = [one.data for one in reports if isinstance(one, Printed) and one.stream is stream]
    return b"".join(pieces).decode()


async def until(look: Callable[[], object]) -> None:
    """Return when ``look`` finds something; the scenario's limit fails the test."""
    while not look():
        # Another process is watched: there is nothing to be woken by.
        await asyncio.sleep(0.005)
