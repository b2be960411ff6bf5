"""Real children: how to start one and how to see what became of it."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from longshore.adapters.system import SystemClock
from longshore.core.definitions.definition import BUILTIN_DEFINITIONS
from longshore.execution.host.attempt import ProcessAttempt
from longshore.execution.host.launcher import ProcessRunner
from longshore.ports.output import Stream
from longshore.ports.runner import AttemptEnding, AttemptSpec, ChildReport, OutputReport

LIMIT_S = 30
NO_GRACE = timedelta(0)
NEVER_NS = 2**63 - 1
CHILDREN = "tests.execution.child_functions"
ROOT = str(Path(__file__).parents[3])


def scenario(test_body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine; one that hangs fails."""

    @wraps(test_body)
    def test(**options: Any) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(LIMIT_S):
                try:
                    await test_body(**options)
                finally:
                    if isinstance(runner := options.get("runner"), ProcessRunner):
                        await runner.close()

        asyncio.run(bounded())

    return test


def a_command(*argv: str, **fields: Any) -> AttemptSpec:
    return _spec("command", {"argv": list(argv)}, fields)


def a_script(text: str, **fields: Any) -> AttemptSpec:
    return a_command("sh", "-c", text, **fields)


def a_call(name: str, /, *args: Any, **fields: Any) -> AttemptSpec:
    """A function of ``children``."""
    options = {"function": f"{CHILDREN}:{name}", "args": list(args), "path": [ROOT]}
    return _spec("python", options, fields)


def _spec(runner: str, input_fields: dict[str, Any], fields: dict[str, Any]) -> AttemptSpec:
    definition = replace(BUILTIN_DEFINITIONS[runner], **fields.pop("definition", {}))
    expected = {
        "task_id": "job-a_a",
        "job_id": "job-a",
        "key": "a",
        "tenant": "acme",
        "attempt": 1,
        "fence": 1,
        "definition": definition,
        "timeout": timedelta(minutes=1),
        "input": {**input_fields, **fields.pop("input", {})},
        **fields,
    }
    return AttemptSpec(**expected)


@pytest.fixture
def runner(tmp_path: Path) -> ProcessRunner:
    return ProcessRunner(tmp_path, {"PATH": "/usr/bin:/bin"}, SystemClock())


async def reports_of(attempt: ProcessAttempt) -> list[ChildReport]:
    return [report async for report in attempt.reports()]


async def run_attempt(
    runner: ProcessRunner, spec: AttemptSpec, *, deadline_ns: int = NEVER_NS
) -> tuple[AttemptEnding, list[ChildReport]]:
    """Run a child to its end."""
    attempt = await runner.start(spec, deadline_ns=deadline_ns)
    try:
        reports = await reports_of(attempt)
        return await attempt.ending(), reports
    finally:
        await attempt.stop(grace=NO_GRACE)
        await attempt.close()


def output_text(reports: list[ChildReport], stream: Stream = Stream.STDOUT) -> str:
    pieces = [
        item.data for item in reports if isinstance(item, OutputReport) and item.stream is stream
    ]
    return b"".join(pieces).decode()


async def wait_until(condition: Callable[[], object]) -> None:
    """Return when ``look`` finds something; the scenario's limit fails the test."""
    while not condition():
        # Another process is watched: there is nothing to be woken by.
        await asyncio.sleep(0.005)
